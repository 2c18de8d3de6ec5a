// Reads what the test gives it with the official libraries, and answers what they see.
const { HTTP, Kafka } = require("cloudevents");
const { Webhook } = require("standardwebhooks");

const read = ({ protocol, headers, body, key, secret }) => {
  const text = body === null ? null : Buffer.from(body, "base64").toString("utf8");
  if (protocol === "webhook") {
    return { data: JSON.stringify(new Webhook(secret).verify(text, headers)) };
  }
  const e = protocol === "http" ? HTTP.toEvent({ headers, body: text }) : Kafka.toEvent({ headers, key, value: text });
  return {
    id: e.id, source: e.source, type: e.type, subject: e.subject, partitionkey: e.partitionkey, datacontenttype: e.datacontenttype,
    data: typeof e.data === "string" ? e.data : JSON.stringify(e.data),
  };
};

const cases = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(cases.map((c) => {
  try { return read(c); } catch (fault) { return { fault: `${fault.name}: ${fault.message}` }; }
})));
