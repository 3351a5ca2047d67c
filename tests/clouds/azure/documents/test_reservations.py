import pytest
from tests.clouds.azure.documents.documents import SIZE, reservation_documents, reservations

from gpuscaler.clouds.azure.documents.reservations import reservations_for, reservations_of
from gpuscaler.clouds.azure.documents.wire import ReadingError


def test_what_is_free_is_what_is_reserved_without_the_machines_in_it() -> None:
    (reservation,) = reservations(5, 2, zone="1")

    assert (reservation.capacity, reservation.available, reservation.zone, len(reservation.allocated)) == (5, 3, "1", 2)


def test_a_group_with_more_machines_than_it_reserves_has_none_free() -> None:
    (reservation,) = reservations(1, 3)

    assert reservation.available == 0


def test_without_a_view_of_its_machines_nothing_is_free() -> None:
    _, documents = reservation_documents(5, 0)

    assert reservations_of({"properties": {}}, documents)[0].available == 0


def test_reservations_are_found_by_size_and_zone() -> None:
    listed = reservations(5, 0, zone="1")

    assert reservations_for(listed, SIZE.upper(), "1") == listed
    assert reservations_for(listed, SIZE, "") == ()
    assert reservations_for(listed, "Standard_Other", "1") == ()


def test_a_reservation_that_failed_is_not_used() -> None:
    assert reservations_for(reservations(5, 0, state="Failed"), SIZE, "") == ()


def test_an_odd_reservation_does_not_stop_the_rest_and_an_odd_group_is_refused() -> None:
    group, documents = reservation_documents(5, 0)

    assert len(reservations_of(group, [None, {"id": "x"}, {"id": "x", "sku": {"name": SIZE, "capacity": -1}}, *documents])) == 1
    with pytest.raises(ReadingError):
        reservations_of([], documents)
