"""`softhca kernel set-port`: what a subnet manager would set of a port of the HCA.

Rules: imported with the command line, so it imports nothing of weight before it is called.
"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from shared.runtime_folder import DEFAULT_INSTANCE
from user_proc.cli.kernel_command import AsJson, Name, errors_as_json
from user_proc.errors import SofthcaError

if TYPE_CHECKING:
    from shared.verb_codes import PortSetting
    from user_proc.io.device_handle import DeviceHandle

#: What is set, at which place, to what; and how that is told.
_Change = tuple["PortSetting", int, int, str]


class PortNotSet(SofthcaError):
    """A port cannot be set so; the changes before it have been made."""


def set_port(
    port: Annotated[int, typer.Argument(metavar="PORT", help="1 or 2.")],
    pkey: Annotated[
        list[str] | None,
        typer.Option(metavar="INDEX=KEY", help="A P_Key of the table, 0 for none; again for more."),
    ] = None,
    guid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INDEX=GUID", help="The GUID of a GID, 0 for none; that at 0 is the port's own."
        ),
    ] = None,
    lid: Annotated[str | None, typer.Option(metavar="LID", help="The LID.")] = None,
    gid_prefix: Annotated[
        str | None, typer.Option(metavar="PREFIX", help="The subnet's prefix of all GIDs.")
    ] = None,
    reregister: Annotated[
        bool, typer.Option("--reregister", help="Ask clients to register anew.")
    ] = False,
    name: Name = DEFAULT_INSTANCE,
    as_json: AsJson = False,
) -> None:
    """Set P_Keys, GIDs, LID of a port as a subnet manager does; programs get the events.

    Numbers may be written 0x8001. Each change is made by itself, in the order of the options.
    """
    changes = _changes(pkey or [], guid or [], lid, gid_prefix, reregister)
    if not changes:
        raise typer.BadParameter(
            "nothing to set: name --pkey, --guid, --lid, --gid-prefix or --reregister"
        )
    with errors_as_json(as_json):
        _make(name, port, changes)
    told = [words for *_, words in changes]
    if as_json:
        typer.echo(json.dumps({"name": name, "port": port, "set": told}))
        return
    for words in told:
        typer.echo(f"port {port}: {words}")


def _changes(
    pkeys: list[str], guids: list[str], lid: str | None, prefix: str | None, reregister: bool
) -> list[_Change]:
    from shared.verb_codes import PortSetting

    found: list[_Change] = []
    for setting, label, given in (
        (PortSetting.PKEY, "P_Key", pkeys),
        (PortSetting.GUID, "GUID", guids),
    ):
        for text in given:
            place, sign, value = text.partition("=")
            if not sign:
                raise typer.BadParameter(f"{text!r}: write INDEX=VALUE, as 3=0x8001")
            index, number = _number(place, 32), _number(value, 64)
            found.append((setting, index, number, f"{label}[{index}] is {number:#x}"))
    for setting, label, one in (
        (PortSetting.LID, "LID", lid),
        (PortSetting.GID_PREFIX, "GID prefix", prefix),
    ):
        if one is not None:
            number = _number(one, 64)
            found.append((setting, 0, number, f"{label} is {number:#x}"))
    if reregister:
        found.append((PortSetting.REREGISTER, 0, 0, "clients are asked to register anew"))
    return found


def _number(text: str, bits: int) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number") from None
    if not 0 <= value < 1 << bits:
        raise typer.BadParameter(f"{text} has more than {bits} bits")
    return value


def _make(name: str, port: int, changes: list[_Change]) -> None:
    from user_proc.cli.hca_control import hca_control

    with hca_control(name) as device:
        for change in changes:
            _set(device, port, change)


def _set(device: "DeviceHandle", port: int, change: _Change) -> None:
    from shared.verb_codes import IOCTL_SET_PORT, SET_PORT, VERB_RESULT
    from user_proc.verbs.reasons import reason_text

    setting, index, value, words = change
    output = bytearray(VERB_RESULT.size)
    device.device_io_control(IOCTL_SET_PORT, SET_PORT.pack(port, setting, index, value), output)
    number, *reason = VERB_RESULT.unpack(output)
    if number:
        raise PortNotSet(f"port {port} was not set so that {words}: {reason_text(*reason)}")
