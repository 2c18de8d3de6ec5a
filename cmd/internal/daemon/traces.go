package daemon

import (
	"context"
	"os"
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

func (d *Daemon) openTraces(ctx context.Context) (*traces, error) {
	cfg := telemetry.Config{
		Endpoint: d.cfg.Telemetry.Endpoint, Authorization: d.cfg.Telemetry.Authorization.Text(),
		Instance: d.cfg.Name, Version: d.options.Version, Logger: d.logger,
		Observe: func(o telemetry.Outcome, n int) { d.process.spans.WithLabelValues(string(o)).Add(float64(n)) },
	}
	wanted, err := telemetry.Wanted(cfg, os.Getenv)
	if !wanted || err != nil {
		return nil, err
	}
	for _, o := range telemetry.Outcomes() {
		cfg.Observe(o, 0) // counters that are there before the first span
	}
	exporter, err := telemetry.New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &traces{exporter, oteloutbox.New(exporter.Provider()), d.process.spans}, nil
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
