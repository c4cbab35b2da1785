"""Finds one short field in a multipart form. Pure; the form itself is forwarded as it is."""

from __future__ import annotations

from email.message import Message

# A model's name; the file in the same form can be large and is not looked at.
MAX_FIELD_BYTES = 1024


def form_field(body: bytes, content_type: str, name: str) -> str | None:
    """Return the value of a form field, or None where there is no such short text field.

    Source: RFC 7578 (multipart/form-data) and RFC 2046 (boundaries).
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if not boundary or header.get_content_type() != "multipart/form-data":
        return None
    for part in body.split(b"--" + boundary.encode(errors="replace"))[1:]:
        head, _, value = part.partition(b"\r\n\r\n")
        if _field_name(head) == name and len(value) <= MAX_FIELD_BYTES:
            return value.removesuffix(b"\r\n").decode(errors="replace")
    return None


def _field_name(head: bytes) -> str | None:
    for line in head.split(b"\r\n"):
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-disposition":
            header = Message()
            header["content-disposition"] = value.decode(errors="replace").strip()
            found = header.get_param("name", header="content-disposition")
            return found if isinstance(found, str) else None
    return None
