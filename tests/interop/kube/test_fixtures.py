"""What other tests may rely on: an API of their own, accounts and tokens in it."""

from __future__ import annotations

import pytest
from kube.api import Api

pytestmark = pytest.mark.interop


def test_the_programs_are_what_they_say(kube_api: Api) -> None:
    assert kube_api.get("/version")["gitVersion"] == "v1.36.3"
    assert b"v1.36.3" in kube_api.kubectl("version")


@pytest.mark.parametrize(("asked", "good"), [("isthmus", True), ("somebody-else", False)])
def test_a_token_is_for_one_audience(kube_api: Api, asked: str, good: bool) -> None:
    token = kube_api.service_account_token("agent", audience="isthmus")
    path = "/apis/authentication.k8s.io/v1/tokenreviews"
    spec = {"token": token, "audiences": [asked]}
    status = kube_api.call("POST", path, {"spec": spec})["status"]
    assert status.get("authenticated", False) is good
    if good:
        assert status["user"]["username"] == "system:serviceaccount:default:agent"
        assert status["audiences"] == ["isthmus"]
