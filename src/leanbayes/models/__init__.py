"""Operations on whole models: KL, noise, members, posteriors; baselines that need no conversion."""
