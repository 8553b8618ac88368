"""The spine once more, through API Gateway, Lambda, SQS and DynamoDB as a third party has them."""

import unittest

import test_durability
import test_spine
from cloud import Cloud


class CloudSpine(test_spine.Spine):
    def machine(self):
        return Cloud().deploy()


class CloudCrash(test_durability.Crash):
    def machine(self):
        return Cloud().deploy()


if __name__ == "__main__":
    unittest.main()
