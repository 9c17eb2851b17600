"""A cohort of simulated clients: what each computes, who answers, and who adds their messages up."""
