"""Which policy serves requests that name none: one place for the verifier's command line and for `outrider up` and `run`.

`adaptive` chooses among the others and gets out of the way where drafts do not pay, as on prose, or with a drafter that is far away; each
of the others is slower than plain decoding somewhere. Must import nothing: command lines read it before anything is loaded.
"""

from __future__ import annotations

DEFAULT_PACING = "adaptive"
