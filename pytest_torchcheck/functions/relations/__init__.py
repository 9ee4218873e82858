"""How a wrong Jacobian relates to the right one, and what experiments say of the cause."""
