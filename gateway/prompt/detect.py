"""Whether a chat template wants a message's text or its list of parts. Pure.

Source: vLLM 0.32 finds it out by what the template loops over; renderers/hf. Its approximations
are made here too: what matters is to come to the same conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable

from jinja2 import nodes


def iterates_parts(template: nodes.Template) -> bool:
    """Return whether a template has a loop over the content of a message.

    Args:
        template: Parsed.
    """
    messages = _message_names(template)
    in_macros: dict[int, frozenset[str]] = {}
    for macro in template.find_all(nodes.Macro):
        taken = _content_parameters(template, macro, messages)
        for loop in macro.find_all(nodes.For):
            # A loop of two macros belongs to the last one that says something about it.
            if taken or id(loop) not in in_macros:
                in_macros[id(loop)] = taken
    return any(_is_over_content(loop, messages, in_macros) for loop in template.find_all(nodes.For))


def _is_over_content(
    loop: nodes.For, messages: frozenset[str], in_macros: dict[int, frozenset[str]]
) -> bool:
    over = loop.iter
    if any(_refers(over, name, "content") for name in messages):
        return True
    if not isinstance(over, nodes.Name):
        return False
    taken = in_macros.get(id(loop))
    # Outside of macros, `content` is taken to be what its name says.
    return over.name == "content" if taken is None else over.name in taken


def _message_names(template: nodes.Template) -> frozenset[str]:
    """Return the names of loop variables that run over the messages, or a part of them."""
    lists = ["messages"]
    for name in lists:  # grows while it runs: a list that is assigned from a list is one too
        for assign in template.find_all(nodes.Assign):
            target = assign.target
            if isinstance(target, nodes.Name) and _refers(assign.node, name):
                lists += [target.name] if target.name not in lists else []
    return frozenset(
        loop.target.name
        for loop in template.find_all(nodes.For)
        if isinstance(loop.target, nodes.Name) and any(_refers(loop.iter, name) for name in lists)
    )


def _content_parameters(
    template: nodes.Template, macro: nodes.Macro, messages: Iterable[str]
) -> frozenset[str]:
    """Return the parameters of a macro that somewhere get the content of a message."""
    parameters = [argument.name for argument in macro.args]
    found: set[str] = set()
    for call in template.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name != macro.name:
            continue
        given = [*zip(parameters, call.args, strict=False)]
        given += [(keyword.key, keyword.value) for keyword in call.kwargs]
        found |= {
            name
            for name, node in given
            if name in parameters and any(_refers(node, message, "content") for message in messages)
        }
    return frozenset(found)


def _refers(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Return whether a node is a variable, or its item `key`, or a slice or a filter of that."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _refers(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _refers(node.node, name, key)
    if key is None:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
    if isinstance(node, nodes.Getitem):
        is_key = isinstance(node.arg, nodes.Const) and node.arg.value == key
        return is_key and _refers(node.node, name) and isinstance(node.node, nodes.Name)
    if isinstance(node, nodes.Getattr):
        return node.attr == key and isinstance(node.node, nodes.Name) and _refers(node.node, name)
    return False
