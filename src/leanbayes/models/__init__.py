"""Operations on whole models: KL, noise, members, posteriors; baselines that need no conversion."""

__all__: list[str] = []
