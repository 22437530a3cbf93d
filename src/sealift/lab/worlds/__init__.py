"""Worlds: parties, their agreement and their machines, made once for everybody.

The demo, the bench, `sealift attacks` and the guest build nothing of their own, and the
tests extend these from outside (clocks, faults). Everything in them is the product:
keys, sealed files, signatures, brokers, sessions.

* ``consortium``: identities, data keys, resources and an agreement, in memory.
* ``brokers``: an owner's broker on disk, and a session with it.
* ``visits``: sealed files, an accelerator and its visits, without a network.
* ``softwarehost``: a host that attests, wherever swtpm is.
* ``folder``: where the files of real processes lie, a folder for each party.
* ``machine``: what a report says of the machine that it was made on.
* ``job``: everything that a job of real processes starts from, made there.
* ``roles``, ``progress``: those processes, and what they told.
* ``holders``: holders that attack, or are slow.
"""
