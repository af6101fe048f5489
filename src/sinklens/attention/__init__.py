"""One seam, `attend`, and the doors into it: observers look at attention calls, interventions change them."""
