"""`softhca devinfo`: the devices of a running kernel, as ibv_devinfo tells of them.

Rules: imported with the command line, so it imports nothing of weight before it is called.
Spec: ibv_devinfo(1).
"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from shared.runtime_folder import DEFAULT_INSTANCE
from user_proc.cli.kernel_command import AsJson, Name, errors_as_json
from user_proc.errors import SofthcaError

if TYPE_CHECKING:
    from user_proc.cli.device_report import DeviceReport
    from user_proc.process import UserProcess
    from user_proc.verbs.device import Device


class DeviceNotShown(SofthcaError):
    """There is no such device or port, or it does not answer."""


def devinfo(
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Tell limits, flags, GIDs and P_Keys, too.")
    ] = False,
    name: Name = DEFAULT_INSTANCE,
    device: Annotated[
        str | None, typer.Option("-d", "--ib-dev", metavar="DEVICE", help="Tell of this one only.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("-i", "--ib-port", metavar="PORT", help="Tell of this port only.")
    ] = None,
    list_only: Annotated[
        bool, typer.Option("-l", "--list", help="Tell the names of the devices and nothing else.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Tell what the HCA of a running kernel is, and in which state its ports are.

    The labels are those of ibv_devinfo; what they tell is asked of the device by verbs.
    """
    from user_proc.process import UserProcess

    with errors_as_json(as_json), UserProcess.connect(name) as process:
        devices = _devices(process, device)
        if list_only:
            _list(devices, as_json)
            return
        reports = [_read(process, one, port) for one in devices]
    if as_json:
        typer.echo(json.dumps([report.as_dict(verbose) for report in reports]))
        return
    for report in reports:
        for line in report.lines(verbose):
            typer.echo(line)


def _devices(process: "UserProcess", wanted: str | None) -> "list[Device]":
    from user_proc.verbs.device import get_device_list
    from user_proc.verbs.pyverbs_error import PyverbsError

    try:
        found = get_device_list(process=process)
    except PyverbsError as error:
        raise DeviceNotShown(
            f"{error}; 'softhca show device --name {process.name}' tells how the HCA is"
        ) from error
    names = [one.name.decode() for one in found]
    if not found:
        raise DeviceNotShown(
            f"the kernel {process.name!r} runs without an HCA: "
            "'softhca kernel start --name NAME' starts one that has it"
        )
    if wanted is not None and wanted not in names:
        raise DeviceNotShown(
            f"the kernel {process.name!r} has no device {wanted!r}: it has {', '.join(names)}"
        )
    return [one for one in found if wanted in (None, one.name.decode())]


def _list(devices: "list[Device]", as_json: bool) -> None:
    names = [one.name.decode() for one in devices]
    if as_json:
        typer.echo(json.dumps(names))
        return
    typer.echo(f"{len(names)} HCA{'' if len(names) == 1 else 's'} found:")
    for name in names:
        typer.echo(f"    {name}")


def _read(process: "UserProcess", device: "Device", port: int | None) -> "DeviceReport":
    from user_proc.cli.device_report import read_device
    from user_proc.verbs.device import Context
    from user_proc.verbs.pyverbs_error import PyverbsError

    name = device.name.decode()
    try:
        with Context(name=name, process=process) as context:
            ports = context.query_device().phys_port_cnt
            if port is not None and not 1 <= port <= ports:
                raise DeviceNotShown(f"the device {name!r} has no port {port}: it has 1 to {ports}")
            return read_device(device, context, port)
    except PyverbsError as error:
        raise DeviceNotShown(f"the device {name!r} does not tell of itself: {error}") from error
