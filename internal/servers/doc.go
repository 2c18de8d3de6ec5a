// Package servers runs real servers as child processes: PostgreSQL, Kafka and NATS, for tests, for the demo and for
// benchmarks. Each may be stopped, killed, frozen and restarted on the same port with the same data. A Kafka is a
// single node, or three brokers with a controller of their own (KafkaCluster).
//
// # Where a server comes from
//
// The first of these that has what is wanted:
//
//  1. An address in the environment: OUTBOX_TEST_POSTGRES (a URL of a superuser), OUTBOX_TEST_KAFKA (host:port, several
//     with commas), OUTBOX_TEST_NATS (a URL), OUTBOX_TEST_ELASTICMQ (host:port). Nothing is started then, and nothing
//     can be killed: what needs to kill takes a server of its own.
//  2. The cache, see [CacheDir], which "make servers" fills. ElasticMQ (SQS) and moto (SNS) come from there alone, with
//     a Java and a Python of the machine.
//  3. The machine: /usr/lib/postgresql/*/bin, Homebrew's opt/postgresql@NN/bin, PATH. Kafka only comes from the cache,
//     with a Java of the machine: JAVA_HOME, then PATH.
//
// Among PostgreSQL installations, the newest of the wanted major version wins, and among equals the first place.
// Nothing is ever downloaded by this package.
//
// With -short, tests that need a server are skipped, and otherwise those that need one that OUTBOX_TEST_SERVERS leaves
// out.
//
// # Environment
//
//   - OUTBOX_CACHE: the cache folder.
//   - OUTBOX_TEST_POSTGRES_MAJOR: the major version for tests that don't ask for one, such as 14.
//   - OUTBOX_TEST_MAJORS: those of [OnMajors].
//   - OUTBOX_TEST_SERVERS: what tests may start, and fail without: "all", or a list such as postgres,nats, in which
//     postgres is the newest version, shared by tests, postgres@14 another, postgres@own one that is a test's alone,
//     and long is what takes long ([Long]). Without it they start what is installed, and with CI set they fail where
//     something isn't.
//   - TMPDIR: where data goes. Without it, the clusters of tests are in memory, in /dev/shm, where Linux has 4 GiB to
//     spare.
//
// # What is left behind
//
// Nothing: Close ends the processes and removes the data. If this process dies, by SIGKILL even, its servers die with
// it (by the parent-death signal on Linux, by a watching shell elsewhere), and its data, in folders that have its
// process id in their names, is removed by the next process that starts a server.
//
// # Root
//
// PostgreSQL refuses to run as root, so root's run as user and group 65534, "nobody". The cache and TMPDIR must then be
// folders that everyone may enter.
//
// Servers are started on Linux and macOS. Elsewhere the package compiles, and only addresses from the environment work.
package servers
