package load_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgoutbox/outbox/cmd/internal/config/internal/configtest"
	"github.com/pgoutbox/outbox/cmd/internal/config/load"
)

// TestEachFaultIsReportedWithItsPlace compares all messages with
// testdata/faults.txt, which is to be read: they are what a person sees.
func TestEachFaultIsReportedWithItsPlace(t *testing.T) {
	t.Parallel()
	noDatabase := strings.SplitAfterN(minimal, "\n", 3)[2]
	kafka := func(text string) string {
		return configtest.Destination("broker: {kafka: {brokers: [\"a:1\"], " + text + "}}")
	}
	nats := func(text string) string { return configtest.Destination("broker: {nats: {" + text + "}}") }
	delivery := func(text string) string {
		return configtest.Destination("broker: {stdout: {}}\ndelivery: {" + text + "}")
	}
	topics := func(text string) string { return configtest.Destination("broker: {stdout: {}}\ntopics: " + text) }
	env := func(pairs ...string) load.Input { return load.Input{Environ: pairs} }
	flag := func(path, value string) load.Input {
		return load.Input{Overrides: map[string]string{path: value}}
	}
	several := func(entries ...string) string {
		return noDatabase + "databases: [{" + strings.Join(entries, "}, {") + "}]\n"
	}
	none := load.Input{}

	type fault struct {
		name string
		text string
		in   load.Input
	}
	cases := []fault{
		{"empty file", "", none},
		{"comments alone", "# nothing\n", none},
		{"not a mapping", "- a\n", none},
		{"syntax: bracket", "name: [a\n", none},
		{"syntax: quote", "name: \"a\n", none},
		{"syntax: tab", minimal + "log:\n\tlevel: info\n", none},
		{"syntax: indentation", "name: a\n  level: b\n", none},
		{"syntax: variable within braces", minimal + "log: {level: ${LEVEL}}\n", none},
		{"alias for itself", minimal + "log: &a *a\n", none},
		{"two documents", minimal + "---\nname: b\n", none},
		{"key twice", minimal + "name: a\nname: b\n", none},
		{"merge key", minimal + "log:\n  <<: {level: info}\n", none},
		{"alias without anchor", minimal + "log: *gone\n", none},
		{"alias within its anchor", minimal + "log: &a {level: *a}\n", none},

		{"unknown key, typing error", minimal + "databse: {}\nlog: {levle: info}\n", none},
		{"unknown key, swapped letters", "database: {ulr: postgres://db}\n" + noDatabase, none},
		{"unknown key, belongs elsewhere", minimal + "batch: 1\n", none},
		{"limits", minimal + "limits: {connections_per_server: 7, in_flight: -1, in_flight_bytes: 1kB, catch_ups: -1}\n", none},
		{"unknown key, nothing near", minimal + "log: {colour: true}\n", none},
		{"unknown key where nothing can be set", configtest.Destination("broker: {stdout: {colour: true}}"), none},
		{"unknown broker", configtest.Destination("broker: {kakfa: {}}"), none},

		{"list for a section", minimal + "log: [a]\n", none},
		{"text for a section", minimal + "log: info\n", none},
		{"section for a text", minimal + "name: {a: b}\n", none},
		{"list for a secret", "database: {url: [postgres://u:hidden@db]}\n" + noDatabase, none},
		{"text for a list", topics("orders"), none},
		{"section in a list of texts", topics("[{a: b}]"), none},
		{"text for a number", delivery("batch: many"), none},
		{"fraction for a number", delivery("batch: 1.5"), none},
		{"text for a truth value", minimal + "retention: {enabled: yes}\n", none},
		{"duration without a unit", configtest.Destination("broker: {stdout: {}}\nlease: 3"), none},
		{"duration with a wrong unit", configtest.Destination("broker: {stdout: {}}\nlease: 3 seconds"), none},
		{"size with a wrong unit", delivery("max_in_flight_bytes: 16MiBi"), none},
		{"negative size", delivery("max_in_flight_bytes: -1"), none},
		{"size too large", delivery("max_in_flight_bytes: 99999999999GiB"), none},

		{"variable that is not set", "database: {url: \"postgres://${PGUSER}:${PGPASSWORD}@db\"}\n" + noDatabase, env("PGUSER=u")},
		{"variable without an end", "database: {url: \"postgres://u:hidden${\"}\n" + noDatabase, none},
		{"variable without a name", "database: {url: \"postgres://u:${hid den}\"}\n" + noDatabase, none},
		{"variable that holds nonsense", delivery("batch: \"${N}\""), env("N=x")},

		{"no database", noDatabase, none},
		{"a viewer's URL", "database: {url: postgres://db, viewer_url: 'u:hidden@db'}\n" + noDatabase, none},
		{"one database beside several", minimal + "databases: [{name: a, database: {url: postgres://a}}]\n", none},
		{"one database by a variable beside several", several("name: a, database: {url: postgres://a}"), env("OUTBOX_DATABASE_URL=postgres://db")},
		{"several, and what they lack", several("database: {}", "name: A b, database: {url: '...'}", "name: c, database: {url: postgres://c}, destinations: []"), none},
		{"several, twice", several("name: a, database: {url: postgres://a}", "name: a, database: {url: postgres://a}"), none},
		{"several, unknown keys", several("name: a, url: postgres://a, log: {}"), none},
		{"several, a fault at the top level", "retention: {interval: 0s}\n" + several("name: a, database: {url: postgres://a}", "name: b, database: {url: postgres://b}"), none},
		{"several, a file that can't be read", several("name: a, database: {url_file: /nonexistent/url}"), none},
		{"several, one file for two", "destinations: [{name: f, broker: {file: {path: /tmp/f}}}]\n" +
			"databases: [{name: a, database: {url: postgres://a}}, {name: b, database: {url: postgres://b}}]\n", none},
		{"no folder of databases", "databases_dir: /nonexistent\n", none},
		{"no URL", "database: {url: postgresql+ssl://u:hidden@db/app}\n" + noDatabase, none},
		{"neither URL nor keywords", "database: {url: \"u:hidden@db/app\"}\n" + noDatabase, none},
		{"URL that needs escapes", "database: {url: \"postgres://u:hid/den%zz@db/app\"}\n" + noDatabase, none},
		{"URL with an @ in its password", "database: {url: \"postgres://relay:p@hid@host\"}\n" + noDatabase, none},
		{"URL with a # in its password", "database: {url: \"postgres://relay:p#hid@host\"}\n" + noDatabase, none},
		{"URL with @ and # in its password", "database: {url: \"postgres://relay:p@hid#1@host/app\"}\n" + noDatabase, none},
		{"URL with a ? in its password", "database: {url: \"postgres://relay:p?hid@host/app\"}\n" + noDatabase, none},
		{"URL with a / in its password", "database: {url: \"postgres://relay:p/hid@host/app\"}\n" + noDatabase, none},
		{"URL with @ and / in its password", "database: {url: \"postgres://relay:p@hid/1@host\"}\n" + noDatabase, none},
		{"URL with a % in its password", "database: {url: \"postgres://relay:hid%@host/app\"}\n" + noDatabase, none},
		{"keywords with a space in the password", "database: {url: \"host=db password=hid den user=relay\"}\n" + noDatabase, none},
		{"keywords with an open quote", "database: {url: \"host=db password='hidden\"}\n" + noDatabase, none},
		{"keywords of libpq", "database: {url: \"host=db keepalives_idle=30\"}\n" + noDatabase, none},
		{"URL of Java", "database: {url: \"jdbc:postgresql://db:5432/app?user=u&password=hidden\"}\n" + noDatabase, none},
		{"URL with parameters of others", "database: {url: \"postgres://u:hidden@db/app?gssencmode=disable&pgbouncer=true&schema=app\"}\n" + noDatabase, none},
		{"URL with a parameter of Java", "database: {url: \"postgres://u:hidden@db/app?ssl=true&currentSchema=app\"}\n" + noDatabase, none},
		{"sslmode, typing error", "database: {url: \"postgres://u:hidden@db/app?sslmode=verify_full\"}\n" + noDatabase, none},
		{"target_session_attrs, typing error", "database: {url: \"postgres://u:hidden@db/app?target_session_attrs=readwrite\"}\n" + noDatabase, none},
		{"port of the URL", "database: {url: \"postgres://u:hidden@db:99999/app\"}\n" + noDatabase, none},
		{"sslrootcert that is missing", "database: {url: \"postgres://u:hidden@db/app?sslmode=verify-full&sslrootcert=/no/such/file\"}\n" + noDatabase, none},
		{"URLs of brokers that need escapes", configtest.Destination("broker: {nats: {url: \"nats://u:p@hid#1@host\"}}") +
			"  - {name: rabbit, broker: {rabbitmq: {url: \"amqp://a:b@one,amqp://u:p#hid@host/v\"}}}\n" +
			"  - {name: hook, broker: {http: {url: \"https://u:p@hid#1@host/x\"}}}\n" +
			"  - {name: redis, broker: {redis: {addresses: [\"redis://:hidden@host:6379\"]}}}\n" +
			"  - {name: kafka, broker: {kafka: {brokers: [\"u:hidden@host:9092\"]}}}\n", none},
		{"what brokers are called elsewhere", configtest.Destination("broker: {webhook: {url: 'https://x'}}") +
			"  - {name: b, broker: {amqp: {}}}\n  - {name: c, broker: {jetstream: {}}}\n  - {name: d, broker: {aws: {}}}\n", none},
		{"batch above max_in_flight", delivery("batch: 500, max_in_flight: 600"), none},
		{"max_in_flight below the batch's default", delivery("max_in_flight: 100"), none},
		{"pattern that is no alias", topics("[*.created]"), none},
		{"destination of variables without a name", minimal, env("OUTBOX_DESTINATIONS_1_RATE=5")},
		{"destination of variables without a number", minimal, env("OUTBOX_DESTINATIONS_1_NAME=a", "OUTBOX_DESTINATIONS_1_RATE=fast")},
		{"url and url_file", "database: {url: postgres://u:hidden@db, url_file: /x}\n" + noDatabase, none},
		{"url_file that is missing", "database: {url_file: /does/not/exist}\n" + noDatabase, none},
		{"url_file that is empty", "database: {url_file: " + os.DevNull + "}\n" + noDatabase, none},

		{"name", "name: Relay 1\n" + minimal, none},
		{"name too long", "name: " + strings.Repeat("a", 64) + "\n" + minimal, none},
		{"level", minimal + "log: {level: inof}\n", none},
		{"format", minimal + "log: {format: xml}\n", none},
		{"listen", minimal + "http: {listen: localhost}\n", none},
		{"listen, port", minimal + "http: {listen: \"localhost:99999\"}\n", none},
		{"series of databases", minimal + "http: {metrics: {databases: -1, worst: -2}}\n", none},
		{"listen to all without a login", minimal + "http: {listen: ':9187'}\n", none},
		{"listen to an address of the network without a login", minimal + "http: {listen: '192.0.2.1:9187'}\n", none},
		{"users", minimal + "http: {listen: ':9187', users: [{name: 'a:b', role: chief, destinations: [x], " +
			"password_hash: hidden, token: hidden, token_sha256: ab}, {name: c}, {name: c, token_file: /does/not/exist}]}\n", none},
		{"certificate of the listener", minimal + "http: {tls: {cert_file: /does/not/exist, key_file: /does/not/exist}}\n", none},
		{"key of the listener alone", minimal + "http: {tls: {key_file: /x}}\n", none},
		{"proxy", minimal + "http: {proxy: {from: [10.0.0.1], header: 'X Y'}}\n", none},
		{"user of a database that there isn't", minimal +
			"http: {users: [{name: anna, token: 0123456789abcdef0123456789abcdef, databases: [shop]}]}\n", none},
		{"proxy of nowhere", minimal + "http: {proxy: {}}\n", none},
		{"masks", minimal + "http: {mask: [card]}\n", none},
		{"retention interval", minimal + "retention: {interval: 0s}\n", none},

		{"telemetry, endpoint", minimal + "telemetry: {endpoint: localhost:4318, authorization: hidden, " +
			"authorization_file: /no/such/file}\n", none},
		{"notify without anybody", minimal + "notify: {}\n", none},
		{"notify, webhook's URL", minimal + "notify: {webhook: {url: hooks.example.com/secret}}\n", none},
		{"notify, webhook without URL", configtest.Destination("broker: {stdout: }\nnotify: {webhook: {}, every: 0s}"), none},
		{"notify, command not found", minimal + "notify: {command: {argv: [/no/such/program, --team]}}\n", none},
		{"notify, command without a program", minimal + "notify: {command: {argv: []}}\n", none},

		{"no destinations", "database: {url: postgres://db}\ndestinations: []\n", none},
		{"destination without anything", "database: {url: postgres://db}\ndestinations: [{}]\n", none},
		{"destination's name", "database: {url: postgres://db}\ndestinations: [{name: Orders!, broker: {stdout: }}]\n", none},
		{"destination's name twice", minimal + "  - name: other\n    broker: {stdout: }\n  - name: orders\n    broker: {stdout: }\n", none},
		{"empty topic", topics("[\"\"]"), none},
		{"only an exclamation mark", topics("[\"!\"]"), none},
		{"topic with braces", topics("[\"a.{b,c}\"]"), none},
		{"no shard group", configtest.Destination("broker: {stdout: {}}\nshard_groups: 0"), none},
		{"too many shard groups", configtest.Destination("broker: {stdout: {}}\nshard_groups: 65"), none},
		{"lease", configtest.Destination("broker: {stdout: {}}\nlease: 5ms"), none},
		{"negative lease", configtest.Destination("broker: {stdout: {}}\nlease: -3s"), none},
		{"drain_timeout", configtest.Destination("broker: {stdout: {}}\ndrain_timeout: 0s"), none},
		{"poll", configtest.Destination("broker: {stdout: {}}\npoll: {busy: 1s, idle: 100ms}"), none},
		{"poll of nothing", configtest.Destination("broker: {stdout: {}}\npoll: {busy: 0s}"), none},

		{"no broker", configtest.Destination("broker: {}"), none},
		{"two brokers", configtest.Destination("broker: {stdout: {}, file: {path: x}}"), none},
		{"file without a path", configtest.Destination("broker: {file: {}}"), none},
		{"archive", configtest.Destination("broker: {archive: {size: 0, age: 0s, keep: -1s}}"), none},
		{"one file twice", configtest.Destination("broker: {file: {path: ./x}}") + "  - name: b\n    broker: {file: {path: x}}\n", none},
		{"one archive twice", configtest.Destination("broker: {archive: {directory: ./x}}") +
			"  - name: b\n    broker: {archive: {directory: x}}\n", none},

		{"log, what its library refuses", configtest.Destination("broker: {stdout: {}}") +
			"    replication: {slot: Not A Slot, emitted: true, catch_up: 1MiB}\n", none},

		{"one slot twice", configtest.Destination("broker: {stdout: {}}") + "    replication: {slot: s}\n" +
			"  - name: b\n    broker: {stdout: {}}\n    replication: {slot: s}\n", none},

		{"kafka without brokers", configtest.Destination("broker: {kafka: }"), none},
		{"kafka, broker whose port is none", configtest.Destination("broker: {kafka: {brokers: [\"kafka:port\"]}}"), none},
		{"kafka, broker as a URL", configtest.Destination("broker: {kafka: {brokers: [\"kafka://k:9092\"]}}"), none},
		{"kafka, broker without a host", configtest.Destination("broker: {kafka: {brokers: [\":9092\"]}}"), none},
		{"kafka, topic without end", kafka("topic: \"{topic\""), none},
		{"kafka, topic with an unknown field", kafka("topic: \"{tpoic}.{user}\""), none},
		{"kafka, empty topic", kafka("topic: \"\""), none},
		{"kafka, compression", kafka("compression: gizp"), none},
		{"kafka, mechanism", kafka("sasl: {mechanism: SCRAM-SHA-512, username: u, password: hidden}"), none},
		{"kafka, no password", kafka("sasl: {username: u}"), none},
		{"kafka, no username", kafka("sasl: {password: hidden}"), none},
		{"kafka, oauth missing", kafka("sasl: {mechanism: oauthbearer}"), none},
		{"kafka, oauth without its mechanism", kafka("sasl: {oauth: {token_url: \"https://l/t\", client_id: a, client_secret: hidden}}"), none},
		{"kafka, oauth with a user", kafka("sasl: {mechanism: oauthbearer, username: u, password: hidden, oauth: {}}"), none},
		{"kafka, oauth values", kafka("sasl: {mechanism: oauthbearer, oauth: {token_url: \"https://u:hidden@l\", client_id: a, client_secret_file: /does/not/exist, scopes: [\"a b\"], timeout: 0s, " +
			"parameters: [{name: scope, value: x}], extensions: [{name: auth, value: x}, {name: a-b, value: x}, {name: " +
			"c, value: }, {name: c, value: x}]}}"), none},
		{"kafka, oauth without TLS", kafka("sasl: {mechanism: oauthbearer, oauth: {token_url: \"http://l/t\", client_id: a, client_secret: hidden, tls: {enabled: true}}}"), none},
		{"kafka, password_file missing", kafka("sasl: {username: u, password_file: /does/not/exist}"), none},
		{"kafka, partitions", kafka("create_topics: true, partitions: 0, replication_factor: -2"), none},
		{"kafka, replicas", kafka("create_topics: true, replication_factor: 40000"), none},
		{"kafka, certificate without a key", kafka("tls: {enabled: true, cert_file: " + os.DevNull + "}"), none},
		{"kafka, key without a certificate", kafka("tls: {enabled: true, key_file: " + os.DevNull + "}"), none},
		{"kafka, authority missing", kafka("tls: {enabled: true, ca_file: /does/not/exist}"), none},

		{"nats, URL", nats("url: \"http://u:hidden@n:4222\""), none},
		{"nats, second URL", nats("url: \"nats://n:4222, nats://u:hid^den%@\""), none},
		{"nats, no URL", nats("url: \"\""), none},
		{"nats, subject with a wildcard", nats("subject: \"a.>\""), none},
		{"nats, subject with an unknown field", nats("subject: \"{aggregate}\""), none},
		{"nats, stream", nats("stream: a.b"), none},
		{"nats, create_stream without a stream", nats("create_stream: true, subject: \"a.{topic}\""), none},
		{"nats, create_stream without subjects", nats("create_stream: true, stream: A"), none},
		{"nats, stream_subjects", nats("create_stream: true, stream: A, stream_subjects: [\"{topic}\"]"), none},
		{"nats, replicas", nats("create_stream: true, stream: A, stream_subjects: [a], replicas: 6"), none},
		{"nats, two ways to authenticate", nats("user: u, token: hidden"), none},
		{"nats, password without a user", nats("password: hidden"), none},
		{"nats, credentials missing", nats("credentials_file: /does/not/exist"), none},
		{"nats, token and token_file", nats("token: hidden, token_file: /x"), none},

		{"no attempt", delivery("max_attempts: 0"), none},
		{"on_exhausted", delivery("on_exhausted: dead-letter"), none},
		{"backoff", delivery("backoff: {initial: 1m, max: 1s}"), none},
		{"hold_after", delivery("hold_after: 0s"), none},
		{"in flight", delivery("batch: 100, max_in_flight: 150"), none},
		{"sqs, standard queues", configtest.Destination("broker: {sqs: {region: eu, queue: \"{topic}\", account: me, endpoint: " +
			"sqs, payload: xml, requests: 0}}"), none},
		{"sqs, field", configtest.Destination("broker: {sqs: {region: eu, queue: \"{key}.fifo\"}}"), none},
		{"sqs, TLS", configtest.Destination("broker: {sqs: {region: eu, endpoint: \"http://x\", tls: {enabled: true}}}"), none},
		{"sns, no topic", configtest.Destination("broker: {sns: {region: eu}}"), none},
		{"sns, topic", configtest.Destination("broker: {sns: {region: eu, topic: orders, endpoint: sns}}"), none},
		{"pubsub, no project", configtest.Destination("broker: {pubsub: {endpoint: \"https://x\", insecure: true, credentials_file: /does/not/exist}}"), none},
		{"http, nothing", configtest.Destination("broker: {http: {}}"), none},
		{"http, public key", configtest.Destination("broker: {http: {url: \"https://u:hidden@h/{topic}\", secret: whpk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=, previous_secret: hidden, bearer_token: hidden, user: u}}"), none},
		{"http, no TLS", configtest.Destination("broker: {http: {url: \"http://h/{topik}\", previous_secret: hidden, password: hidden, api_key_header: Host, max_payload: -1, allow_networks: [10.0.0.0/8, 10.0.0.1, ten], tls: {enabled: true}}}"), none},
		{"http, TLS without https", configtest.Destination("broker: {http: {url: \"http://h/{topic}\", tls: {enabled: true}}}"), none},
		{"http, scheme", configtest.Destination("broker: {http: {url: \"ftp://hidden/\", request_messages: 0, api_key: hidden}}"), none},
		{"grpc, nothing", configtest.Destination("broker: {grpc: {}}"), none},
		{"grpc, token without TLS", configtest.Destination("broker: {grpc: {target: \"h:1\", token: hidden, keepalive: 1s, " +
			"max_message_bytes: 10}}"), none},
		{"bytes in flight", delivery("max_in_flight_bytes: 1000"), none},
		{"batch", delivery("batch: 0"), none},

		{"environment, number", minimal, env("OUTBOX_DESTINATIONS_0_DELIVERY_BATCH=x")},
		{"environment, range", minimal, env("OUTBOX_DESTINATIONS_0_DELIVERY_BATCH=0")},
		{"environment, file", minimal, env("OUTBOX_DATABASE_URL_FILE=/does/not/exist")},
		{"environment, both forms", minimal, env("OUTBOX_DATABASE_URL_FILE=/x", "OUTBOX_DATABASE_URL=postgres://u:hidden@db")},
		{"environment, second broker", minimal, env("OUTBOX_DESTINATIONS_0_BROKER_NATS_STREAM=A")},
		{"environment, list", minimal, env("OUTBOX_DESTINATIONS_0_TOPICS=[a")},
		{"flag, value", minimal, flag("log.level", "loud")},
		{"flag, unknown path", minimal, flag("log.levle", "info")},
		{"flag, no index", minimal, flag("destinations.orders.lease", "1s")},
		{"flag, index too large", minimal, flag("destinations[5].lease", "1s")},
		{"flag, below a single value", minimal, flag("log.level.x", "1s")},
		{"flag, section", minimal, flag("log", "{level: a, formt: text}")},

		{"everything at once", "name: A\n" + configtest.Destination("broker: {kafka: {tpoic: x, compression: br, sasl: {username: "+
			"u}}}\nlease: 3") + "log: {level: \"${LEVEL}\"}\n",
			load.Input{Environ: []string{"OUTBOX_HTTP_LISTEN=x"}, Overrides: map[string]string{"retention.interval": "often"}}},
	}

	var all strings.Builder
	for _, c := range cases {
		l, message := configtest.Try(t, c.text, c.in)
		if l != nil {
			t.Errorf("%s: no fault", c.name)
			continue
		}
		for _, hidden := range []string{"hidden", "hid den", "hid/den", "hid^den"} {
			if strings.Contains(message, hidden) {
				t.Errorf("%s: the message shows a secret: %s", c.name, message)
			}
		}
		fmt.Fprintf(&all, "== %s\n%s\n\n", c.name, message)
	}
	golden(t, "testdata/faults.txt", all.String())
}

func TestAFileThatIsMissingIsAFault(t *testing.T) {
	t.Parallel()
	_, err := load.Config(load.Input{File: "none.yaml", Environ: []string{"OUTBOX_DATABASE_URL=postgres://db"},
		Overrides: map[string]string{"destinations": "[{name: a, broker: {stdout: }}]"}})
	want := "the configuration has a fault:\n  none.yaml: can't read the file: no such file or directory"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if _, err := load.Config(load.Input{File: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a folder: error %v", err)
	}
}

func TestASyntaxErrorShowsNothingOfTheLinesAround(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"database:\n  url: postgres://u:hidden@db\n\tx: y\n",
		"database:\n  url: postgres://u:hidden@db\n  : : {\n",
		"database: {url: postgres://u:hidden@db, [\n",
		"database:\n  url: 'postgres://u:hidden@db\n",
		"database:\n  url: \"postgres://u:hidden\\q@db\"\n",
		"database:\n  url: @hidden\n",
		"database:\n  url: postgres://u: hidden: x\n",
		"database:\n  url: %hidden\n",
		"database:\n  url: &hidden\n",
		"database:\n  hidden\n",
		"database:\n  url: | hidden\n",
		"database:\n  url: !hidden [\n",
	} {
		_, message := configtest.Try(t, text, load.Input{})
		if message == "" || strings.Contains(message, "hidden") {
			t.Errorf("%q: %s", text, message)
		}
	}
}

func TestTheFileIsNamedAsItWasGiven(t *testing.T) {
	t.Parallel()
	path := configtest.Write(t, "my.yml", minimal+"nmae: x\n")
	_, err := load.Config(load.Input{File: path})
	want := path + ":6:1: nmae: unknown key; did you mean \"name\"?"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	if filepath.Base(path) != "my.yml" {
		t.Fatal(path)
	}
}
