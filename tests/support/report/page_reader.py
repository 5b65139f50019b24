"""A parser for HTML pages."""

from html.parser import HTMLParser


class Reader(HTMLParser):
    """Collects elements, ids, addresses, and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.addresses, self.words = [], [], [], []
        self.feed(text)
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"{tag} {name}={value}"
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "srcset", "action"):
                self.addresses.append(value)

    def handle_data(self, data):
        self.words.append(data)
