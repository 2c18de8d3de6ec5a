"""Reads what the test gives it with the official libraries, and answers what they see."""
import base64
import json
import sys

from cloudevents.core.bindings import kafka
from cloudevents.v1 import http
from standardwebhooks import Webhook


def read(case):
    headers, body = case["headers"], base64.b64decode(case["body"])
    if case["protocol"] == "webhook":
        return {"data": compact(Webhook(case["secret"]).verify(body.decode(), headers))}
    if case["protocol"] == "http":
        event = http.from_http(headers, body)
    else:
        as_bytes = {name: value.encode() for name, value in headers.items()}
        event = kafka.from_kafka_event(kafka.KafkaMessage(headers=as_bytes, key=case["key"], value=body))
    attributes, data = event.get_attributes(), event.get_data()
    seen = {name: attributes.get(name) for name in ("id", "source", "type", "subject", "partitionkey", "datacontenttype")}
    if isinstance(data, bytes):
        data = data.decode()
    return seen | {"data": data if isinstance(data, str) else compact(data)}


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def attempt(case):
    try:
        return read(case)
    except Exception as fault:
        return {"fault": f"{type(fault).__name__}: {fault}"}


print(json.dumps([attempt(case) for case in json.load(sys.stdin)]))
