"""An attested host of our own: a guest with measured boot, IMA and a software TPM.

Made from Debian's packages, run by QEMU in software: it needs neither root nor KVM. It
rehearses the level `attested-host`; its TPM is swtpm's, so it protects from nobody.
"""
