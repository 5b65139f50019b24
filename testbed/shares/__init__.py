"""Exchange of CPU shares between the guests of a job: formulas, accounts and messages, without clocks or networks."""
