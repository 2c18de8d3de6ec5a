package daemon

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgoutbox/outbox/cmd/internal/config"
	"github.com/pgoutbox/outbox/cmd/internal/config/brokers"
	"github.com/pgoutbox/outbox/cmd/internal/telemetry"
	"github.com/pgoutbox/outbox/oteloutbox"
	"github.com/pgoutbox/outbox/relay"
)

// traces are the spans of what this relay sends. nil if no collector is named.
type traces struct {
	exporter *telemetry.Exporter
	tracer   *oteloutbox.Tracer
	spans    *prometheus.CounterVec
}

// observer adds spans to what next is told.
func (t *traces) observer(c config.Destination, next relay.Observer) relay.Observer {
	if t == nil {
		return next
	}
	left := t.spans.WithLabelValues(string(telemetry.LeftOut))
	return t.tracer.Observer(oteloutbox.Sending{System: system(c.Broker), Destination: c.Name,
		Skipped: func(n int) { left.Add(float64(n)) }}, next)
}

// flushing bounds how long the end of the relay waits for the collector.
const flushing = 5 * time.Second

func (t *traces) close() {
	if t != nil {
		t.exporter.Close(flushing)
	}
}

// system names a broker as the semantic conventions do, or as the configuration does where they don't.
func system(b brokers.Broker) string {
	switch {
	case b.SQS != nil:
		return "aws_sqs"
	case b.SNS != nil:
		return "aws.sns"
	case b.PubSub != nil:
		return "gcp_pubsub"
	}
	return b.Kind()
}
