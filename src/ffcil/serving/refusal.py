"""`Refusal`: the exception for requests that are not accepted."""


class Refusal(Exception):
    """A request that is not accepted: the status of HTTP, and one sentence with the culprit and the remedy."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence
