import pytest

from art_backend.devices import Device, parse_devices, visible
from art_backend.errors import BadRequestError


def test_the_drivers_listing_is_read():
    listing = "NVIDIA H200, 143771\nNVIDIA GeForce RTX 4090, 24564\n"
    assert parse_devices(listing) == (
        Device("NVIDIA H200", 143_771 * 2**20),
        Device("NVIDIA GeForce RTX 4090", 24_564 * 2**20),
    )


def test_a_child_sees_the_devices_that_it_was_given_alone():
    assert visible((), {}) == {}
    assert visible((2, 3), {}) == {"CUDA_VISIBLE_DEVICES": "2,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_devices_are_counted_among_those_that_the_service_sees():
    assert visible((1,), {"CUDA_VISIBLE_DEVICES": "GPU-a, GPU-b"}) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    with pytest.raises(BadRequestError, match="devices: 2 is not visible here"):
        visible((0, 2), {"CUDA_VISIBLE_DEVICES": "4,5"})
