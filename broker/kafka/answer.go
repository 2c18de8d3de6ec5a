package kafka

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/internal/shell"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// verdict classifies the client library's error for a record.
type verdict int

const (
	topicFailed    verdict = iota // concerns a topic; can be cured
	topicGone                     // the same, and our knowledge of the topic is out of date
	batchRefused                  // because of a record, not necessarily this one
	unknownOutcome                // tells nothing about a record: an outage
	notSent                       // or possibly sent: the client was closed
)

// verdicts has the answers that are neither about a topic nor such that the library repeats the request because of
// them. docs/brokers/kafka.md has all.
var verdicts = map[*kerr.Error]verdict{
	// A record.
	kerr.MessageTooLarge: batchRefused, kerr.RecordListTooLarge: batchRefused,
	kerr.InvalidRecord: batchRefused, kerr.CorruptMessage: batchRefused,

	// A topic that we know wrongly.
	kerr.UnknownTopicOrPartition: topicGone, kerr.UnknownTopicID: topicGone, kerr.InconsistentTopicID: topicGone,

	// What the cluster knows of the producer or its transaction.
	kerr.OutOfOrderSequenceNumber: unknownOutcome, kerr.DuplicateSequenceNumber: unknownOutcome,
	kerr.UnknownProducerID: unknownOutcome, kerr.InvalidProducerEpoch: unknownOutcome,
	kerr.InvalidProducerIDMapping: unknownOutcome, kerr.ProducerFenced: unknownOutcome,
	kerr.InvalidTxnState: unknownOutcome, kerr.TransactionCoordinatorFenced: unknownOutcome,
	kerr.ConcurrentTransactions: unknownOutcome, kerr.TransactionAbortable: unknownOutcome,
	kerr.TransactionalIDAuthorizationFailed: unknownOutcome, kerr.TransactionalIDNotFound: unknownOutcome,
	kerr.InvalidTransactionTimeout: unknownOutcome,

	// The user, the settings, or the server: they concern every message.
	kerr.ClusterAuthorizationFailed: unknownOutcome, kerr.SaslAuthenticationFailed: unknownOutcome,
	kerr.IllegalSaslState: unknownOutcome, kerr.UnsupportedSaslMechanism: unknownOutcome,
	kerr.SecurityDisabled: unknownOutcome, kerr.PrincipalDeserializationFailure: unknownOutcome,
	kerr.DelegationTokenAuthDisabled: unknownOutcome, kerr.DelegationTokenNotFound: unknownOutcome,
	kerr.DelegationTokenExpired: unknownOutcome, kerr.DelegationTokenAuthorizationFailed: unknownOutcome,
	kerr.UnsupportedVersion: unknownOutcome, kerr.UnsupportedCompressionType: unknownOutcome,
	kerr.InvalidRequest: unknownOutcome, kerr.InvalidRequiredAcks: unknownOutcome,
	kerr.UnknownServerError: unknownOutcome, kerr.OperationNotAttempted: unknownOutcome,
	kerr.RebootstrapRequired: unknownOutcome, kerr.InconsistentClusterID: unknownOutcome,
	kerr.StaleBrokerEpoch: unknownOutcome, kerr.NewLeaderElected: unknownOutcome,
}

func verdictOn(err error) verdict {
	var answer *kerr.Error
	if !errors.As(err, &answer) {
		if errors.Is(err, kgo.ErrClientClosed) || errors.Is(err, kgo.ErrAborting) {
			return notSent
		}
		return unknownOutcome
	}
	if v, found := verdicts[answer]; found {
		return v
	}
	if answer.Retriable {
		return unknownOutcome
	}
	return topicFailed
}

func tooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// topicError explains the cluster's error about a topic.
func (c *cluster) topicError(name string, err error) error {
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		err = fmt.Errorf("kafka: topic %q doesn't exist; create it: %s; or have missing topics created, by "+
			"create_topics: true", name, c.createCommand(name))
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		err = fmt.Errorf("kafka: topic %q: not permitted; grant this user Write and Describe on the topic: %w", name, err)
	case errors.Is(err, kerr.InvalidTopicException):
		return outbox.Permanent(fmt.Errorf("kafka: topic %q: the cluster takes no topic of this name: %w", name, err))
	case errors.Is(err, kerr.UnsupportedForMessageFormat):
		err = fmt.Errorf("kafka: topic %q: its message.format.version is older than 0.11, which knows no headers; raise it: %w", name, err)
	case errors.Is(err, kerr.InvalidTimestamp):
		// The time of a record is that of publishing, by this machine's clock: no message can be at fault. How far it
		// may be from a server's time is a setting of the topic.
		err = outbox.Unavailable(fmt.Errorf("kafka: topic %q: %w; the clock of this machine and that of a server of the cluster "+
			"are further apart than the topic's message.timestamp.after.max.ms (an hour by default) or "+
			"message.timestamp.before.max.ms allows: set both clocks right, or raise that limit if only this topic is refused", name, err))
	default:
		err = fmt.Errorf("kafka: topic %q: %w", name, err)
	}
	return outbox.TopicUnavailable(err)
}

// down describes why nothing can be published now.
func (c *cluster) down(err error) error {
	where := "kafka: " + strings.Join(c.cfg.Brokers, ", ")
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", where, errClosedAtOnce)
	}
	if fail := c.dialFail.Load(); fail != nil && !errors.Is(err, *fail) {
		return fmt.Errorf("%s: %w (last attempt to connect: %w)", where, err, *fail)
	}
	return fmt.Errorf("%s: %w", where, explain(err))
}

// explain adds to an answer of the cluster, or to what the library makes of one, what to do about it.
func explain(err error) error {
	advice := ""
	switch {
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		advice = "not permitted to produce idempotently; grant this user IdempotentWrite on the cluster"
	case errors.Is(err, kerr.IllegalSaslState), errors.Is(err, kerr.UnsupportedSaslMechanism):
		advice = "this port takes no authentication by SASL, or not this mechanism: connect to the port of a listener that " +
			"does (SASL_PLAINTEXT, SASL_SSL), or change or remove sasl"
	case errors.Is(err, kerr.UnsupportedVersion), errors.Is(err, kerr.UnsupportedCompressionType):
		advice = "this server is too old for what is asked of it: see compression, and the page of this broker"
	case strings.Contains(err.Error(), "invalid large response size"):
		advice = "what answers at this address doesn't speak Kafka's protocol: correct the address or the port; if it is " +
			"the port for TLS, turn TLS on"
	default:
		return err
	}
	return fmt.Errorf("%w; %s", err, advice)
}

// createCommand is what a person types to create a topic. Partitions are named though the cluster has a default: it is
// one, as a rule, and their number can't be changed for a topic with keys.
func (c *cluster) createCommand(topic string) string {
	return c.command(topic, cmp.Or(c.cfg.Partitions, advisedPartitions))
}

const advisedPartitions = 12

func (c *cluster) command(topic string, partitions int32) string {
	command := fmt.Sprintf("kafka-topics.sh --bootstrap-server %s --create --topic %s --partitions %d",
		shell.Word(strings.Join(c.cfg.Brokers, ",")), shell.Word(topic), partitions)
	if c.cfg.ReplicationFactor > 0 {
		command += fmt.Sprintf(" --replication-factor %d", c.cfg.ReplicationFactor)
	}
	return command
}
