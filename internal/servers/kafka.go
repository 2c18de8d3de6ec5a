package servers

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// KafkaConfig says what kind of broker is wanted. The zero value is one for tests.
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

// Kafka is a single node, broker and controller in one, without authentication, on 127.0.0.1. Topics are created on
// first use, with one partition, unless the Settings say otherwise.
type Kafka struct {
	Server
	behind  string
	storage string
}

// StartKafka starts a node and returns when it answers, after 2 to 4 s. The caller must Close it. The error wraps
// [ErrNotFound] when Kafka or Java isn't installed.
func StartKafka(ctx context.Context, config KafkaConfig) (*Kafka, error) {
	if err := canStart(); err != nil {
		return nil, err
	}
	java, lib, err := FindKafka()
	if err != nil {
		return nil, err
	}
	k := &Kafka{storage: config.Storage}
	k.name = "Kafka " + KafkaVersion
	k.stopSig = syscall.SIGTERM
	if k.folder, err = newFolder("kafka", 0); err != nil {
		return nil, fmt.Errorf("start %s: %w", k.name, err)
	}
	k.command = func() command {
		return command{
			path:    java,
			args:    slices.Concat(javaArgs(k.folder, lib, config.Bench), []string{"kafka.Kafka", k.properties()}),
			env:     os.Environ(),
			dir:     k.folder,
			onDeath: syscall.SIGKILL,
		}
	}
	k.ready = func(ctx context.Context) error { return kafkaAnswers(ctx, k.addr) }

	err = os.WriteFile(filepath.Join(k.folder, "log4j2.xml"), []byte(log4j), 0o644)
	if err == nil {
		err = k.startFirst(ctx, 3, func(ports []int) error {
			if config.Front != "" {
				k.behind = loopback(ports[2])
			}
			if err := os.WriteFile(k.properties(), []byte(k.serverProperties(ports, config)), 0o644); err != nil {
				return err
			}
			return k.format(ctx, java, lib)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", k.name, errors.Join(err, k.Close()))
	}
	return k, nil
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

func javaArgs(folder, lib string, bench bool) []string {
	args := []string{"-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
	if bench {
		args = []string{"-Xms512m", "-Xmx512m", "-XX:+UseSerialGC"}
	}
	return append(args,
		"-Dlog4j2.configurationFile="+filepath.Join(folder, "log4j2.xml"),
		// What Java unpacks and counts goes with the folder, even when the server is killed.
		"-Djava.io.tmpdir="+folder, "-XX:-UsePerfData",
		"-cp", filepath.Join(lib, "*"))
}

func (k *Kafka) serverProperties(ports []int, config KafkaConfig) string {
	broker, controller := loopback(ports[0]), loopback(ports[1])
	properties := map[string]string{
		"process.roles":                                    "broker,controller",
		"node.id":                                          "1",
		"controller.quorum.voters":                         "1@" + controller,
		"controller.listener.names":                        "CONTROLLER",
		"listeners":                                        "PLAINTEXT://" + broker + ",CONTROLLER://" + controller,
		"advertised.listeners":                             "PLAINTEXT://" + broker,
		"listener.security.protocol.map":                   "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
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
	if config.Front != "" {
		properties["listeners"] += ",BEHIND://" + k.behind
		properties["advertised.listeners"] += ",BEHIND://" + config.Front
		properties["listener.security.protocol.map"] += ",BEHIND:PLAINTEXT"
		properties["inter.broker.listener.name"] = "PLAINTEXT"
	}
	maps.Copy(properties, config.Settings)
	var lines strings.Builder
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&lines, "%s=%s\n", name, properties[name])
	}
	return lines.String()
}

// format makes the data folder. Formatting takes a second, therefore a formatted folder is kept and copied: there is
// nothing in it that depends on the ports, since the quorum is given by controller.quorum.voters.
func (k *Kafka) format(ctx context.Context, java, lib string) error {
	if _, err := os.Stat(k.data()); err == nil {
		return nil
	}
	return fromTemplate("kafka-"+KafkaVersion, k.data(), 0, func() error {
		return runToEnd(ctx, java, slices.Concat(javaArgs(k.folder, lib, false),
			[]string{"kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", k.properties()}), os.Environ(), 0)
	})
}

// kafkaAnswers asks for the metadata of the cluster and returns nil if it has a broker and a controller.
func kafkaAnswers(ctx context.Context, addr string) error {
	const metadata, version = 3, 1
	// Header: key, version, correlation id, client id. Body: an empty list of topics.
	request := binary.BigEndian.AppendUint16(nil, metadata)
	request = binary.BigEndian.AppendUint16(request, version)
	request = binary.BigEndian.AppendUint32(request, 1)
	request = binary.BigEndian.AppendUint16(request, uint16(len("servers")))
	request = append(request, "servers"...)
	request = binary.BigEndian.AppendUint32(request, 0)
	response, err := kafkaCall(ctx, addr, request)
	if err != nil {
		return err
	}
	// Correlation id; brokers: a number, and of each id, host, port, rack; the controller's id.
	r := kafkaReader{rest: response}
	r.int32()
	brokers := r.int32()
	for i := int32(0); i < brokers && !r.short; i++ {
		r.int32()
		r.string()
		r.int32()
		r.string()
	}
	controller := r.int32()
	if r.short || brokers < 1 || controller < 0 {
		return fmt.Errorf("Kafka at %s has %d brokers and controller %d", addr, brokers, controller)
	}
	return nil
}

// kafkaCall sends one request and returns the response, each without its length.
func kafkaCall(ctx context.Context, addr string, request []byte) ([]byte, error) {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return nil, err
	}
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
