"""The demonstration: a page to draw on (page.html), and the server that answers it (server)."""
