"""Which hosts are cloud APIs: today's fifteen cases, and what ours adds."""

from __future__ import annotations

import pytest

from isthmus.dial.rules_service_names import (
    CHINA_SUFFIXES,
    GOOGLE_SUFFIXES,
    HYPERSHIFT_SUFFIXES,
    SUFFIXES,
    CloudApis,
)


@pytest.mark.parametrize(
    ("host", "suffix"),
    [
        # The hosts of HyperShift's TestIsCloudAPI.
        ("ec2.us-east-1.amazonaws.com", ".amazonaws.com"),
        ("s3.amazonaws.com", ".amazonaws.com"),
        ("ec2.us-iso-east-1.c2s.ic.gov", ".c2s.ic.gov"),
        ("ec2.us-isof-south-1.csp.hci.ic.gov", ".hci.ic.gov"),
        ("ec2.us-isob-east-1.sc2s.sgov.gov", ".sc2s.sgov.gov"),
        ("login.microsoftonline.com", ".microsoftonline.com"),
        ("management.azure.com", ".azure.com"),
        ("iam.cloud.ibm.com", ".cloud.ibm.com"),
        ("example.com", ""),
        ("azure.com", ""),
        ("notazure.com", ""),
        ("amazonaws.com", ""),
        ("cloud.ibm.com", ""),
        ("amazonaws.com.example.org", ""),
        ("kubernetes.default.svc", ""),
        # Ours.
        ("compute.googleapis.com", ".googleapis.com"),
        ("googleapis.com", ""),
        ("ec2.cn-north-1.amazonaws.com.cn", ".amazonaws.com.cn"),
        ("management.chinacloudapi.cn", ".chinacloudapi.cn"),
        ("x.azure.cn", ".azure.cn"),
        ("login.partner.microsoftonline.cn", ".microsoftonline.cn"),
        ("EC2.US-East-1.AmazonAWS.com", ".amazonaws.com"),
        ("ec2.us-east-1.amazonaws.com.", ".amazonaws.com"),
        ("169.254.169.254", ""),
        ("::1", ""),
        (".azure.com", ""),
        ("", ""),
    ],
)
def test_a_suffix_with_its_dot_makes_a_host_a_cloud_api(host: str, suffix: str) -> None:
    assert CloudApis().suffix_of(host) == suffix


def test_the_list_is_todays_with_google_and_china() -> None:
    assert (*HYPERSHIFT_SUFFIXES, *GOOGLE_SUFFIXES, *CHINA_SUFFIXES) == SUFFIXES
    assert all(suffix.startswith(".") and suffix == suffix.lower() for suffix in SUFFIXES)


def test_the_list_can_be_extended_and_hosts_excluded() -> None:
    cloud = CloudApis([".Cloud.Example"], ["Proxy.Azure.com."])
    assert cloud.suffix_of("api.cloud.example") == ".cloud.example"
    assert cloud.suffix_of("cloud.example") == ""
    assert cloud.suffix_of("proxy.azure.com") == ""
    assert cloud.suffix_of("PROXY.azure.com.") == ""
    assert cloud.suffix_of("other.azure.com") == ".azure.com"
    assert repr(cloud) == "CloudApis(13 suffixes, 1 hosts excluded)"
