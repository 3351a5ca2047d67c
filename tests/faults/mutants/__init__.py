"""For each case the smallest changes of the source that remove its handling: the test of the case must fail then."""

from tests.faults.mutants import clouds, control, lifecycle, others, planning, registration

MUTANTS = (*control.MUTANTS, *registration.MUTANTS, *lifecycle.MUTANTS, *planning.MUTANTS, *clouds.MUTANTS, *others.MUTANTS)
