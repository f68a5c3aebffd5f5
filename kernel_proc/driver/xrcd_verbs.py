"""XRC domains: the one kind of object that processes share, by the inode of a descriptor.

A domain without inode is its context's own. One with an inode lives as long as any context has it
open; the driver holds the inode open meanwhile, so that no other file can come to have its number.

Rules: PASSIVE_LEVEL; a descriptor is looked at by the lane of the process, which may be kept
waiting by it.
Spec: Linux drivers/infiniband/core/uverbs_cmd.c (ib_uverbs_open_xrcd); ibv_open_xrcd(3).
"""

import errno
import os
from typing import TYPE_CHECKING, Any, Final

from kernel_proc.driver.notification import notification_of
from kernel_proc.driver.queue_resource import refuse
from kernel_proc.driver.refusal import VerbRefused
from kernel_proc.driver.resources import Resource
from kernel_proc.driver.verb import Verb
from kernel_proc.scheduling.raised_status import RaisedStatus
from shared import verb_codes as codes
from shared.connection_file import process_start_ticks
from shared.verb_messages import NO_FD, Object, OpenXrcd
from shared.verb_reasons import VerbReason

if TYPE_CHECKING:
    from kernel_proc.driver.context import Context
    from kernel_proc.driver.hca_driver import HcaDriver
    from kernel_proc.io_manager.irp import Irp
    from kernel_proc.scheduling.os_lane import Lane

Inode = tuple[int, int]  # device and inode number


class Domain:
    """A domain; `descriptor` holds its inode, -1 if it has none."""

    __slots__ = ("descriptor", "inode", "number", "users")

    def __init__(self, number: int, inode: Inode | None, descriptor: int) -> None:
        self.number = number
        self.inode = inode
        self.descriptor = descriptor
        self.users = 0

    def close(self) -> None:
        """Let go of the inode."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Xrcd(Resource):
    """One opening of a domain."""

    kind = "XRC domain"

    __slots__ = ("domain",)

    def __init__(self, context: "Context", domain: Domain) -> None:
        super().__init__(context)
        self.domain = domain
        domain.users += 1

    @property
    def number(self) -> int:
        """Return the number the HCA compares."""
        return self.domain.number

    def destroy(self, driver: "HcaDriver") -> None:
        """Close the domain; the last to close it removes it."""
        domain = self.domain
        domain.users -= 1
        if domain.users:
            return
        if domain.inode is not None:
            del notification_of(driver).domains[domain.inode]
        domain.close()
        driver.numbers.xrcd.free(domain.number)

    def attributes(self) -> dict[str, Any]:
        """Return number and how often the domain is open."""
        return {"number": self.number, "opened": self.domain.users}


class HeldDescriptor:
    """The inode behind a user's descriptor, held open by one of our own."""

    __slots__ = ("inode", "own")

    def __init__(self, pid: int, number: int) -> None:
        # A path descriptor opens nothing: no device, no pipe, no file system is asked.
        self.own = os.open(f"/proc/{pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
        status = os.fstat(self.own)
        self.inode: Inode = (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Let go of the inode."""
        os.close(self.own)


def _look(pid: int, number: int) -> HeldDescriptor:
    """Open what the process has at a descriptor; its start must be the same before and after."""
    before = process_start_ticks(pid)
    found = HeldDescriptor(pid, number)
    if before is None or process_start_ticks(pid) != before:
        found.close()
        raise OSError(errno.ESRCH, os.strerror(errno.ESRCH))
    return found


def descriptor_of(context: "Context", number: int) -> HeldDescriptor:
    """Hold the inode behind a descriptor of the context's process; EBADF if it has none."""
    process = context.process
    if process is None:
        raise VerbRefused(errno.EBADF, VerbReason.BAD_DESCRIPTOR, number)
    lane: Lane = process.address_space._lane  # what blocks there delays this process alone
    try:
        found: HeldDescriptor = lane.run(
            _look, process.process_id, number, discard=HeldDescriptor.close
        )
    except (OSError, RaisedStatus) as error:
        full = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
        code = errno.ENOMEM if full else errno.EBADF
        raise VerbRefused(code, VerbReason.BAD_DESCRIPTOR, number) from error
    if process.exiting:
        found.close()
        raise VerbRefused(errno.EBADF, VerbReason.BAD_DESCRIPTOR, number)
    return found


def _new_domain(context: "Context", inode: Inode | None, descriptor: int) -> Domain:
    number = context.driver.numbers.xrcd.take(context.owner)
    return Domain(number, inode, descriptor)


def _shared_domain(context: "Context", found: HeldDescriptor, oflags: int) -> Domain:
    """Find or make the domain of an inode; the descriptor is the domain's if it is made."""
    domains = notification_of(context.driver).domains
    domain = domains.get(found.inode)
    if domain is None:
        if not oflags & os.O_CREAT:
            raise VerbRefused(errno.EAGAIN, VerbReason.NO_DOMAIN)
        domain = domains[found.inode] = _new_domain(context, found.inode, found.own)
        return domain
    if oflags & os.O_EXCL:
        refuse(VerbReason.DOMAIN_EXISTS)
    found.close()
    return domain


def open_xrcd(
    driver: "HcaDriver", context: "Context", request: OpenXrcd, irp: "Irp | None"
) -> Object:
    """Open or create a domain."""
    context.require_room()
    if request.fd == NO_FD:
        if not request.oflags & os.O_CREAT:
            raise VerbRefused(errno.EAGAIN, VerbReason.NO_DOMAIN)
        domain = _new_domain(context, None, -1)
    else:
        found = descriptor_of(context, request.fd)
        try:
            domain = _shared_domain(context, found, request.oflags)
        except VerbRefused:
            found.close()
            raise
    xrcd = Xrcd(context, domain)
    try:
        return Object(context.add(xrcd))
    except VerbRefused:  # the context was filled while the descriptor was looked at
        xrcd.destroy(driver)
        raise


def close_xrcd(driver: "HcaDriver", context: "Context", request: Object, irp: "Irp | None") -> None:
    """Close a domain in which the context has neither SRQ nor QP."""
    context.destroy(Xrcd, request.handle)


VERBS: Final = {
    codes.IOCTL_OPEN_XRCD: Verb(open_xrcd, OpenXrcd),
    codes.IOCTL_CLOSE_XRCD: Verb(close_xrcd, Object),
}
