"""A run's model as one of CTranslate2: what it computes, and where arrays go."""
