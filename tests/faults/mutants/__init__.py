"""For each case the smallest change of the source that removes what handles it: the case's test must fail then."""

from tests.faults.mutants import clouds, control, lifecycle, others, planning, registration

MUTANTS = (*control.MUTANTS, *registration.MUTANTS, *lifecycle.MUTANTS, *planning.MUTANTS, *clouds.MUTANTS, *others.MUTANTS)
