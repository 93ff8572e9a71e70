"""PostgreSQL only: the two schemas that hold tables, and the name of the one that is served."""
