"""The console: read-only web pages over a Verifier's database, for its operators, in the browser.

`serving` runs it (`weighbridge console`), `sign_in` admits callers by their role certificate at every request, `pages`
has the addresses, `reading` and `search` ask the database, which is opened so that it refuses every change, and
`journey` follows one snapshot from the chip to the verdict. Names and texts in a database may be a Prover's: pages
escape everything, and browsers are told to run no script but the one that lies beside them.
"""
