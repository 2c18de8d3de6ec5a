package servers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/internal/child"
)

// KafkaConfig configures a broker. The zero value is one for tests.
type KafkaConfig struct {
	// Bench lets Java compile to the full and gives it 512 MB instead of 256. The start takes twice the CPU.
	Bench bool

	// Settings are added to server.properties and win over what stands there.
	Settings map[string]string

	// Front is the address, host:port, of a proxy. Clients that come by it, to the listener at Behind, are
	// sent to it again for everything else. Those that come to Addr stay there. Default: there is no Behind.
	Front string

	// Storage is an empty folder for the data, such as a small file system that can be filled up. It stays
	// the caller's. Default: a folder of the server's own.
	Storage string
}

// Kafka is one node, without authentication, on 127.0.0.1: broker and controller in one, or a broker of a
// [KafkaCluster]. Topics are created on first use, with one partition, unless the Settings say otherwise.
type Kafka struct {
	Server
	node    kafkaNode
	voter   string // the controller, id@host:port
	behind  string
	storage string
}

// kafkaNode is what a node is in its cluster.
type kafkaNode struct {
	id         int
	role       string
	controller *Kafka // nil: itself
}

const (
	brokerRole     = "broker"
	controllerRole = "controller"
)

// StartKafka starts a node and returns when it answers, after 2 to 4 s. The caller must Close it. The error wraps
// [ErrNotFound] when Kafka or Java isn't installed.
func StartKafka(ctx context.Context, config KafkaConfig) (*Kafka, error) {
	return startKafka(ctx, config, kafkaNode{id: 1, role: brokerRole + "," + controllerRole})
}

func startKafka(ctx context.Context, config KafkaConfig, node kafkaNode) (*Kafka, error) {
	java, lib, err := FindKafka()
	k := &Kafka{node: node, storage: config.Storage}
	return orNone(k, k.launch(ctx, err, kind{
		name: "Kafka " + KafkaVersion,
		free: 3,
		place: func() error {
			k.voter = fmt.Sprintf("%d@%s", node.id, loopback(k.ports[1]))
			if node.controller != nil {
				k.voter = node.controller.voter
			}
			if config.Front != "" {
				k.behind = loopback(k.ports[2])
			}
			err := errors.Join(
				os.WriteFile(filepath.Join(k.folder, "log4j2.xml"), []byte(log4j), 0o644),
				os.WriteFile(k.properties(), []byte(k.serverProperties(config)), 0o644))
			if err != nil {
				return err
			}
			return k.format(ctx, java, lib)
		},
		command: func() child.Command {
			return child.Command{Path: java, Args: append(k.javaArgs(lib, config.Bench), "kafka.Kafka", k.properties())}
		},
		ready: k.answersAsNode,
	}))
}

// TestKafka returns a broker that all tests of this binary share, started on first use. A test takes topics with names
// of its own. The test is skipped, or fails where servers are required, if there is no Kafka.
func TestKafka(t testing.TB) *Kafka {
	t.Helper()
	return shareGiven(t, &Kafka{}, givenKafka, StartKafka, nil)
}

// OwnKafka returns a broker that is the test's alone, to be killed and frozen. It is started even if the environment
// has an address. It is closed at the end of the test. At most one config is given.
func OwnKafka(t testing.TB, config ...KafkaConfig) *Kafka {
	t.Helper()
	return own(t, StartKafka, config)
}

func (k *Kafka) properties() string { return filepath.Join(k.folder, "server.properties") }

func (k *Kafka) data() string {
	if k.storage != "" {
		return filepath.Join(k.storage, "data")
	}
	return filepath.Join(k.folder, "data")
}

// Behind returns the address of the listener that a proxy at KafkaConfig.Front has to forward to.
func (k *Kafka) Behind() string { return k.behind }

const log4j = `<Configuration status="error">
 <Appenders><Console name="out"><PatternLayout pattern="%d %p %m (%c{1})%n%throwable"/></Console></Appenders>
 <Loggers><Root level="info"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
`

func (k *Kafka) javaArgs(lib string, bench bool) []string {
	args := javaArgs(k.folder, lib, "256m", bench)
	if !bench {
		args = append(args, "-XX:TieredStopAtLevel=1") // its tests start many, and to compile to the full costs more than it saves
	}
	return append(args, "-Dlog4j2.configurationFile="+filepath.Join(k.folder, "log4j2.xml"))
}

func (k *Kafka) serverProperties(config KafkaConfig) string {
	var listeners, advertised []string
	if k.node.role != controllerRole {
		listeners = append(listeners, "PLAINTEXT://"+loopback(k.ports[0]))
		advertised = listeners
	}
	if k.node.controller == nil {
		listeners = append(listeners, "CONTROLLER://"+loopback(k.ports[1]))
	}
	if config.Front != "" {
		listeners = append(listeners, "BEHIND://"+k.behind)
		advertised = append(slices.Clip(advertised), "BEHIND://"+config.Front)
	}
	properties := map[string]string{
		"process.roles":                                    k.node.role,
		"node.id":                                          strconv.Itoa(k.node.id),
		"controller.quorum.voters":                         k.voter,
		"controller.listener.names":                        "CONTROLLER",
		"listeners":                                        strings.Join(listeners, ","),
		"listener.security.protocol.map":                   "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,BEHIND:PLAINTEXT",
		"inter.broker.listener.name":                       "PLAINTEXT",
		"log.dirs":                                         k.data(),
		"offsets.topic.replication.factor":                 "1",
		"offsets.topic.num.partitions":                     "4",
		"transaction.state.log.replication.factor":         "1",
		"transaction.state.log.min.isr":                    "1",
		"transaction.state.log.num.partitions":             "4",
		"share.coordinator.state.topic.replication.factor": "1",
		"share.coordinator.state.topic.min.isr":            "1",
		"group.initial.rebalance.delay.ms":                 "0",
		"log.cleaner.dedupe.buffer.size":                   "16777216",
		// A node that was killed comes back when the registration of its former life has expired: 9 s by default.
		"broker.session.timeout.ms":    "2000",
		"broker.heartbeat.interval.ms": "400",
	}
	if len(advertised) > 0 {
		properties["advertised.listeners"] = strings.Join(advertised, ",")
	}
	return settings("%s=%s", properties, config.Settings)
}

// format makes the data folder. Formatting takes a second, therefore a formatted folder is kept and copied: there is
// nothing in it that depends on the ports, since the quorum is given by controller.quorum.voters.
func (k *Kafka) format(ctx context.Context, java, lib string) error {
	if _, err := os.Stat(k.data()); err == nil {
		return nil
	}
	name := "kafka-" + KafkaVersion
	if k.node.id != 1 {
		name += "-node-" + strconv.Itoa(k.node.id) // which has an identity of its own
	}
	return fromTemplate(name, k.data(), 0, func() error {
		return child.Run(ctx, child.Command{Path: java, Dir: k.folder, Args: append(k.javaArgs(lib, false),
			"kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", k.properties())})
	})
}

// answersAsNode returns nil if the cluster counts the node among its brokers; if it is no broker, when it listens.
func (k *Kafka) answersAsNode(ctx context.Context, addr string) error {
	if k.node.role == controllerRole {
		_, controller, _ := strings.Cut(k.voter, "@")
		const apiVersions = 18
		_, err := kafkaCall(ctx, controller, kafkaRequest(apiVersions, 0))
		return err
	}
	brokers, err := kafkaBrokers(ctx, addr)
	if err == nil && !slices.Contains(brokers, int32(k.node.id)) {
		err = fmt.Errorf("the brokers are %d, and it is %d", brokers, k.node.id)
	}
	return err
}

// kafkaAnswers returns nil if the cluster has a broker and a controller.
func kafkaAnswers(ctx context.Context, addr string) error {
	_, err := kafkaBrokers(ctx, addr)
	return err
}

// kafkaBrokers asks for the metadata of the cluster and returns the ids of its brokers: one at least, and there is
// a controller.
func kafkaBrokers(ctx context.Context, addr string) ([]int32, error) {
	const metadata, version = 3, 1
	// Body: an empty list of topics.
	response, err := kafkaCall(ctx, addr, binary.BigEndian.AppendUint32(kafkaRequest(metadata, version), 0))
	if err != nil {
		return nil, err
	}
	// Correlation id; brokers: a number, and of each id, host, port, rack; the controller's id.
	r := kafkaReader{rest: response}
	r.int32()
	n := r.int32()
	var brokers []int32
	for i := int32(0); i < n && !r.short; i++ {
		brokers = append(brokers, r.int32())
		r.string()
		r.int32()
		r.string()
	}
	controller := r.int32()
	if r.short || n < 1 || controller < 0 {
		return nil, fmt.Errorf("Kafka at %s has %d brokers and controller %d", addr, n, controller)
	}
	return brokers, nil
}

// kafkaRequest returns the header of a request: key, version, correlation id, client id.
func kafkaRequest(key, version uint16) []byte {
	request := binary.BigEndian.AppendUint16(nil, key)
	request = binary.BigEndian.AppendUint16(request, version)
	request = binary.BigEndian.AppendUint32(request, 1)
	request = binary.BigEndian.AppendUint16(request, uint16(len("servers")))
	return append(request, "servers"...)
}

// kafkaCall sends one request and returns the response, each without its length.
func kafkaCall(ctx context.Context, addr string, request []byte) ([]byte, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if _, err := conn.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(request))), request...)); err != nil {
		return nil, err
	}
	var length [4]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n > 1<<20 {
		return nil, fmt.Errorf("%s answers with %d bytes: not Kafka", addr, n)
	}
	response := make([]byte, n)
	_, err = io.ReadFull(conn, response)
	return response, err
}

type kafkaReader struct {
	rest  []byte
	short bool // there was less than expected
}

func (r *kafkaReader) take(n int) []byte {
	if n < 0 || n > len(r.rest) {
		r.short = true
		return make([]byte, 4)
	}
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *kafkaReader) int32() int32 { return int32(binary.BigEndian.Uint32(r.take(4))) }

// string skips a string. A length of -1 means null.
func (r *kafkaReader) string() {
	if n := int16(binary.BigEndian.Uint16(r.take(2))); n > 0 {
		r.take(int(n))
	}
}
