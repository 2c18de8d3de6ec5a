package nats_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pgoutbox/outbox"
	"github.com/pgoutbox/outbox/broker/internal/brokertest"
	"github.com/pgoutbox/outbox/broker/nats"
	"github.com/pgoutbox/outbox/internal/await"
	"github.com/pgoutbox/outbox/internal/child"
	"github.com/pgoutbox/outbox/internal/servers"
)

// cluster is three servers, to be killed and started again one by one.
type cluster struct {
	t       *testing.T
	path    string
	configs []string
	clients []string
	running []*child.Process
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	servers.TestNATS(t) // skips or fails if there is no server
	path, err := servers.FindNATS()
	if err != nil {
		t.Fatal(err)
	}
	const size = 3
	c := &cluster{t: t, path: path, running: make([]*child.Process, size)}
	dir := t.TempDir()
	addrs := freeAddresses(t, 2*size)
	var routes []string
	for _, addr := range addrs[size:] {
		routes = append(routes, fmt.Sprintf("%q", "nats://"+addr))
	}
	for i := range size {
		config := fmt.Sprintf("server_name: n%d\nlisten: %q\nlogfile: %q\njetstream { store_dir: %q }\ncluster { name: "+
			"C, listen: %q, routes: [%s] }\n",
			i, addrs[i], filepath.Join(dir, fmt.Sprintf("log%d", i)), filepath.Join(dir,
				fmt.Sprintf("js%d", i)), addrs[size+i], strings.Join(routes, ", "))
		file := filepath.Join(dir, fmt.Sprintf("%d.conf", i))
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		c.configs = append(c.configs, file)
		c.clients = append(c.clients, "nats://"+addrs[i])
		c.start(i)
	}
	t.Cleanup(func() {
		for i := range c.running {
			c.kill(i)
		}
	})
	return c
}

func freeAddresses(t *testing.T, n int) (addrs []string) {
	t.Helper()
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		addrs = append(addrs, listener.Addr().String())
	}
	return addrs
}

func (c *cluster) start(i int) {
	c.t.Helper()
	process, err := child.Start(child.Command{Path: c.path, Args: []string{"-c", c.configs[i]}, LogFile: c.configs[i] + ".out"})
	if err != nil {
		c.t.Fatal(err)
	}
	c.running[i] = process
}

func (c *cluster) kill(i int) {
	if c.running[i] == nil {
		return
	}
	if err := c.running[i].Kill(); err != nil {
		c.t.Error(err)
	}
	c.running[i] = nil
}

// leader returns the server that leads s, -1 if none does.
func (c *cluster) leader(js jetstream.JetStream, name string) int {
	ctx, cancel := context.WithTimeout(c.t.Context(), await.Expiry(time.Second))
	defer cancel()
	stream, err := js.Stream(ctx, name)
	if err != nil || stream.CachedInfo().Cluster == nil {
		return -1
	}
	return slices.Index([]string{"n0", "n1", "n2"}, stream.CachedInfo().Cluster.Leader)
}

func TestAClusterThatLosesLeadersLosesAndDisordersNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	url := strings.Join(c.clients, ",")
	await.Until(t, "a client can connect", func() bool {
		nc, err := natsgo.Connect(url)
		if err == nil {
			nc.Close()
		}
		return err == nil
	})
	js := jetStream(t, url)
	cfg := jetstream.StreamConfig{Name: "R3", Subjects: []string{"R3.>"}, Replicas: 3}
	await.Until(t, "the cluster creates a stream", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(2*time.Second))
		defer cancel()
		_, err := js.CreateStream(ctx, cfg)
		return err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse)
	})
	s := &stream{t: t, url: url, name: cfg.Name, js: js}
	b := s.broker("", nats.Config{Stream: cfg.Name, AckTimeout: await.Expiry(time.Second), ConnectTimeout: await.Expiry(time.Second)})

	all := messages(6000, 60)
	brokertest.DeliverDuring(patient(t), t, b, all, 300, func(calls int) {
		if calls == 5 || calls == 12 {
			leader := -1
			await.Until(t, "the stream has a leader", func() bool {
				leader = c.leader(js, cfg.Name)
				return leader >= 0
			})
			c.kill(leader)
			c.start(leader)
		}
	})
	// Members that were killed catch up and elect again: to read takes a leader that stays for a while, and one that
	// goes doesn't answer.
	var got []outbox.Message
	await.Until(t, "the cluster can be read to the end", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), await.Expiry(30*time.Second))
		defer cancel()
		var err error
		got, err = s.read(ctx)
		return err == nil
	})
	// A repeat may be stored twice here: the window of repeats is of the leader's memory.
	if repeats := brokertest.CheckOrder(t, all, got); len(got)-repeats != len(all) {
		t.Errorf("%d of %d messages are in the stream", len(got)-repeats, len(all))
	}

	// Without a quorum nothing is accepted, and no attempt is spent.
	for i := range 2 {
		c.kill(i)
	}
	batch := messages(10, 3)
	for range 3 {
		errs := b.Publish(patient(t), batch)
		brokertest.CheckOutcomes(t, batch, errs)
		if len(errs) != len(batch) || !outbox.IsUnavailable(errs[0]) {
			t.Fatalf("without a quorum: %v", errs)
		}
		t.Logf("without a quorum: %v", errs[0])
	}
	await.Until(t, "ping names the missing quorum", func() bool {
		err := b.Ping(patient(t))
		if err != nil {
			t.Logf("ping without a quorum: %v", err)
		}
		return err != nil
	})
	for i := range 2 {
		c.start(i)
	}
	brokertest.Deliver(patient(t), t, b, batch)
}
