"""CPU of a gateway per request and per streamed event, beside its peers (`make bench`)."""
