"""Colours of settings, the same in every figure."""

from ffcil.report.read.records import RunRecord

SETTING_COLOURS = {
    "Equ.T": "#3f8fd2",
    "FF.org": "#e0662f",
    "FF.ours": "#12a17a",
    "FF.flow": "#b5306e",
    "Equ.flow": "#6d5bd0",
    "Equ.ours": "#a874c9",
}
PART_COLOURS = {
    "CWM": "#c9a227",
    "DIWA": "#9c6b3f",
    "HA": "#9c6b3f",
    "CWM + HA without surrogates": "#d45087",
    "CWM + HA without identity": "#6a7fdb",
}
OTHER_COLOUR = "#8a8f98"


def colour(setting: str) -> str:
    """Colour of a setting."""
    parts = setting.partition(" with ")[2]
    return SETTING_COLOURS.get(setting) or PART_COLOURS.get(parts, OTHER_COLOUR)


def schedule_colour(run: RunRecord) -> str:
    """Colour of the original method's setting with the schedule of this run."""
    return colour({"Equ": "Equ.T", "FF": "FF.org"}.get(run.schedule, run.schedule))
