"""Tables on Reverb servers. Nothing else imports Reverb."""
