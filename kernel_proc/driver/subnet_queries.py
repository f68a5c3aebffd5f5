"""What the port's subnet management agent knows, asked by MAD_IFC: one datagram for an attribute.

Rules: PASSIVE_LEVEL; every routine waits for one command, `query_node` for two.
Spec: IBA vol. 1, 14.2.5; Linux mthca_mad.c, mthca_cmd.c (mthca_MAD_IFC).
"""

import errno
from typing import TYPE_CHECKING, Final, NamedTuple

from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.hca_abi import command_opcodes as op
from kernel_proc.hca_abi import management_datagrams as mad
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.hca_driver import HcaDriver

_IGNORE_KEYS: Final = 3  # neither M_Key nor B_Key is checked
_VENDOR_MASK: Final = 0xFF_FFFF


class NodeInfo(NamedTuple):
    """NodeInfo of the HCA."""

    system_guid: int
    node_guid: int
    device_id: int
    revision: int
    vendor_id: int


def query_attribute(driver: "HcaDriver", attribute: int, modifier: int, port: int) -> bytes:
    """Get an attribute's 64 bytes; EINVAL if the agent says no."""
    return _ask(driver, mad.METHOD_GET, attribute, modifier, port, b"")


def set_attribute(
    driver: "HcaDriver", attribute: int, modifier: int, port: int, data: bytes
) -> None:
    """Set an attribute's 64 bytes; EINVAL if the agent says no."""
    _ask(driver, mad.METHOD_SET, attribute, modifier, port, data)


def _ask(
    driver: "HcaDriver", method: int, attribute: int, modifier: int, port: int, data: bytes
) -> bytes:
    head = mad.SMP_HEAD.pack(
        mad.BASE_VERSION,
        mad.CLASS_SUBNET_MANAGEMENT,
        mad.CLASS_VERSION,
        method,
        0,
        0,
        0,
        0,
        attribute,
        modifier,
    )
    datagram = (head.ljust(mad.SMP_DATA_OFFSET, b"\0") + data).ljust(mad.MAD_SIZE, b"\0")
    answer = driver.channel.run(
        op.MAD_IFC,
        modifier=port,
        opmod=_IGNORE_KEYS,
        inbox=datagram,
        outbox_length=mad.MAD_SIZE,
    ).outbox
    status = mad.SMP_HEAD.unpack_from(answer)[4]
    if status != mad.MAD_STATUS_OK:
        raise VerbRefused(errno.EINVAL, VerbReason.MAD_FAILED, attribute, status)
    return answer[mad.SMP_DATA_OFFSET : mad.SMP_DATA_OFFSET + mad.SMP_DATA_SIZE]


def query_node_info(driver: "HcaDriver", port: int = 1) -> NodeInfo:
    """Get NodeInfo."""
    data = query_attribute(driver, mad.ATTRIBUTE_NODE_INFO, 0, port)
    fields = mad.NODE_INFO.unpack_from(data)
    system_guid, node_guid = fields[4], fields[5]
    return NodeInfo(system_guid, node_guid, fields[8], fields[9], fields[10] & _VENDOR_MASK)


def query_node(driver: "HcaDriver") -> str:
    """Get the node's description and check that it is one of ours; return the description."""
    text = query_attribute(driver, mad.ATTRIBUTE_NODE_DESCRIPTION, 0, 1)
    query_node_info(driver)
    return text.rstrip(b"\0").decode("utf-8", "replace")
