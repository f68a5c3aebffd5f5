"""A kernel client in system threads, and what every test of one does."""

from typing import Any

from kernel_proc.channel_interface.verbs_table import VerbAnswer, VerbsTable
from kernel_proc.clients.verbs_connection import open_verbs
from kernel_proc.io_manager.file_object import FileObject
from tests.kernel_proc.driver.hca_box import HcaBox
from tests.kernel_proc.driver.queue_user import Doorbells


class Client:
    """A kernel client in a system thread."""

    def __init__(self, box: HcaBox) -> None:
        self.box = box
        self.file: FileObject | None = None
        self.table: VerbsTable = box.processor.run_thread(self._open)
        self.doorbells = Doorbells(self.table.doorbells)

    def _open(self) -> VerbsTable:
        self.file, table = open_verbs(self.box.io)
        return table

    def call(self, code: int, request: Any = None, on_completion: Any = None) -> VerbAnswer:
        answer: VerbAnswer = self.box.processor.run_thread(
            self.table.call, code, request, on_completion
        )
        return answer

    def good(self, code: int, request: Any = None, on_completion: Any = None) -> VerbAnswer:
        answer = self.call(code, request, on_completion)
        assert answer.errno == 0, answer
        return answer

    def close(self) -> None:
        file, self.file = self.file, None
        if file is not None:
            self.box.processor.run_thread(file.dereference)


def settle(client: Client) -> None:
    """Let the HCA and the DPCs do what there is to do."""
    while client.box.hca.run_once():
        pass
    client.box.processor.run_thread(lambda: None)
