"""DDI compliance rules: the first parameter of 0xC4 where a routine has no older code of its own.

A routine passes the number to `Processor.require_irql`, which uses it under the verifier.

Spec: WDK, DDI Compliance Rules (WDM).
"""

from typing import Final

IRQL_KE_DISPATCH_LTE: Final = 0x20011
IRQL_OB_PASSIVE: Final = 0x2001B
