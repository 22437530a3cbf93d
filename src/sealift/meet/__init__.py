"""The meeting that makes an agreement: invitations, cards, terms, words to compare.

Source: spec/meeting.md.
"""
