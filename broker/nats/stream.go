package nats

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
)

// findStream creates the stream if the configuration asks for that and it does not exist.
func (b *Broker) findStream(ctx context.Context, l *link) error {
	if b.cfg.Stream == "" {
		return nil
	}
	if b.cfg.CreateStream == nil {
		b.inspectLater(l, b.cfg.Stream)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.cfg.AckTimeout)
	defer cancel()
	_, err := l.js.Stream(ctx, b.cfg.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		create := b.cfg.CreateStream
		_, err = l.js.CreateStream(ctx, jetstream.StreamConfig{
			Name:       b.cfg.Stream,
			Subjects:   create.Subjects,
			Replicas:   create.Replicas,
			Duplicates: create.DuplicateWindow,
			MaxAge:     create.MaxAge,
			MaxBytes:   create.MaxBytes,
			Storage:    jetstream.FileStorage,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			err = nil // another relay was faster
		}
		if err == nil {
			b.cfg.Logger.Info("created stream", "stream", b.cfg.Stream, "subjects", create.Subjects, "replicas", create.Replicas)
		}
	}
	if err != nil {
		return jetStreamFault(fmt.Errorf("nats: create stream %q: %w", b.cfg.Stream, err))
	}
	b.inspectLater(l, b.cfg.Stream)
	return nil
}

// checkJetStream looks up the configured stream, or the account if there is none. If the user lacks the permission to
// ask, it assumes that all is well.
func (b *Broker) checkJetStream(ctx context.Context, l *link) error {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.AckTimeout)
	defer cancel()
	subject := b.api("INFO")
	if b.cfg.Stream != "" {
		subject = b.api("STREAM.INFO." + b.cfg.Stream)
	}
	if !l.mayAsk(subject) {
		return nil
	}
	var err error
	if b.cfg.Stream == "" {
		if _, err = l.js.AccountInfo(ctx); err == nil && b.subject.Constant() {
			return b.whyNoStream(ctx, l, b.subject.Literals[0])
		}
	} else {
		var stream jetstream.Stream
		if stream, err = l.js.Stream(ctx, b.cfg.Stream); err == nil {
			return quorumFault(b.cfg.Stream, stream.CachedInfo().Cluster)
		}
	}
	switch {
	case err == nil || !l.mayAsk(subject):
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound) && b.cfg.CreateStream != nil:
		return nil // the first message creates it
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("nats: stream %q does not exist: create it, for example by: nats stream add %s --storage file --replicas 3",
			b.cfg.Stream, b.cfg.Stream)
	}
	return jetStreamFault(fmt.Errorf("nats: JetStream does not answer: %w", err))
}

// quorumFault returns what keeps a stream's cluster from accepting messages, nil if nothing is known.
func quorumFault(stream string, cluster *jetstream.ClusterInfo) error {
	if cluster == nil || cluster.Name == "" {
		return nil // a server without a cluster
	}
	if cluster.Leader == "" {
		return fmt.Errorf("nats: stream %q has no leader: too few of its servers are up", stream)
	}
	up, all := 1, len(cluster.Replicas)+1
	for _, replica := range cluster.Replicas {
		if !replica.Offline {
			up++
		}
	}
	if 2*up <= all {
		return fmt.Errorf("nats: stream %q has no quorum: %d of its %d servers are up", stream, up, all)
	}
	return nil
}

// api is the subject of a request to JetStream.
func (b *Broker) api(question string) string {
	if b.cfg.Domain != "" {
		return "$JS." + b.cfg.Domain + ".API." + question
	}
	return "$JS.API." + question
}

// jetStreamFault adds what to do if JetStream itself is missing.
func jetStreamFault(err error) error {
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) ||
		errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return fmt.Errorf("%w; JetStream must be enabled on the server (nats-server -js) and for the account, and have a leader", err)
	}
	return err
}

// explain replaces the error "no responders" of c's messages by its reason. A missing stream is an outage of the
// subject, a stream without a leader one of the destination.
func (b *Broker) explain(ctx context.Context, l *link, c *call) {
	const questions = 8 // a batch of thousands of wrong topics must not send a request for each
	reasons := make(map[string]error)
	for i, err := range c.Errs() {
		if !errors.Is(err, errNoResponders) {
			continue
		}
		subject, err := c.subject.expanded(c.Messages[i])
		if err != nil {
			continue // it was sent, so it has a subject
		}
		reason, found := reasons[subject]
		if !found {
			if len(reasons) < questions {
				reason = b.whyNoResponders(ctx, l, subject)
				reasons[subject] = reason
			} else {
				reason = noStream(subject)
			}
		}
		c.Errs()[i] = reason
	}
}

func (b *Broker) whyNoResponders(ctx context.Context, l *link, subject string) error {
	question := b.api("STREAM.NAMES")
	if !l.mayAsk(question) {
		return noStream(subject)
	}
	ctx, cancel := context.WithTimeout(ctx, min(b.cfg.AckTimeout, time.Second))
	defer cancel()
	stream, err := l.js.StreamNameBySubject(ctx, subject)
	switch {
	case err == nil:
		return outbox.Unavailable(fmt.Errorf("nats: stream %q takes subject %q but does not answer: it has no leader, or is just starting",
			stream, subject))
	case errors.Is(err, jetstream.ErrStreamNotFound), !l.mayAsk(question):
		return noStream(subject)
	}
	return outbox.Unavailable(jetStreamFault(fmt.Errorf("nats: nothing answers on subject %q, nor for JetStream: %w", subject, err)))
}

// whyNoStream returns why a subject is taken by no stream; nil if one takes it, or if the user may not ask.
func (b *Broker) whyNoStream(ctx context.Context, l *link, subject string) error {
	if !l.mayAsk(b.api("STREAM.NAMES")) {
		return nil
	}
	if _, err := l.js.StreamNameBySubject(ctx, subject); errors.Is(err, jetstream.ErrStreamNotFound) {
		return noStream(subject)
	}
	return nil // it has been asked about already whether the server answers
}

func noStream(subject string) error {
	return outbox.TopicUnavailable(fmt.Errorf("nats: no stream takes subject %q: create one, for example by: nats "+
		"stream add ORDERS --subjects '%s' --storage file --replicas 3", subject, subject))
}

// inspect is called once per link for every stream that acknowledges.
func (b *Broker) inspect(stream string) {
	if l := b.shared.Current(); l != nil {
		b.inspectLater(l, stream)
	}
}

// inspectLater warns, once per stream, about settings that endanger the guarantees. No caller waits for it. A user
// without the permission to ask only misses the warning.
func (b *Broker) inspectLater(l *link, name string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, done := b.inspected[name]; done || b.background.Err() != nil {
		return
	}
	b.inspected[name] = struct{}{}
	b.inspecting.Go(func() {
		ctx, cancel := context.WithTimeout(b.background, b.cfg.AckTimeout)
		defer cancel()
		stream, err := l.js.Stream(ctx, name)
		if err != nil {
			b.cfg.Logger.Debug("stream settings not checked", "stream", name, "error", err)
			return
		}
		b.warn(stream.CachedInfo().Config)
	})
}

func (b *Broker) warn(stream jetstream.StreamConfig) {
	logger := b.cfg.Logger.With("stream", stream.Name)
	if stream.Replicas < 2 {
		logger.Warn("stream has one replica: acknowledged messages can be lost with its server; use 3")
	}
	if stream.Storage == jetstream.MemoryStorage {
		logger.Warn("stream is kept in memory: acknowledged messages are lost when its servers restart")
	}
	if stream.Duplicates < defaultDuplicates {
		logger.Warn("stream's duplicate window is short: a message sent again after a longer outage is stored twice",
			"window", stream.Duplicates)
	}
	if stream.NoAck {
		logger.Warn("stream is set not to acknowledge: nothing can be delivered to it; unset no_ack")
	}
	if stream.Retention == jetstream.InterestPolicy {
		logger.Warn("stream keeps messages by interest: it acknowledges and drops what no consumer has asked for")
	}
}
