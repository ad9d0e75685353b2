import pytest

from art_backend.devices import Device, choose_visible, parse_devices, visible
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


def test_devices_that_the_service_does_not_see_do_not_count():
    devices = [Device(f"{n}", n) for n in range(4)]
    assert choose_visible(devices, None) == tuple(devices)
    assert choose_visible(devices, "3,1") == (devices[3], devices[1])
    assert choose_visible(devices, "") == ()
    assert len(choose_visible(devices, "GPU-a,GPU-b")) == 2
