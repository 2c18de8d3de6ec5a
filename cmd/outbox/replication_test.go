package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgoutbox/outbox/internal/await"
)

// replicated is a configuration that reads the log, with a slot that no other test of the cluster uses.
func (d *database) replicated() string {
	slot := "outbox_" + d.Config().Database
	d.t.Cleanup(func() { d.dropSlot(slot) })
	return d.fileYAML("    replication: {slot: " + slot + "}\n")
}

// dropSlot lets the database be dropped.
func (d *database) dropSlot(slot string) {
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		d.t.Errorf("drop the slot: %v", err)
		return
	}
	defer conn.Close(ctx)
	for ctx.Err() == nil {
		_, err = conn.Exec(ctx, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1", slot)
		if err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond) // the stream of a relay that was stopped takes a moment to end
	}
	d.t.Errorf("drop the slot: %v", err)
}

func TestARunningRelayIsHandedOverFromTheLogToTheTableAndBack(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.outbox("handover").want(exitUsage, "--destination")
	d.outbox("handover", "--destination", "file", "--to", "kafka").want(exitUsage, "replication, snapshot")
	d.outbox("handover", "--destination", "file", "--to", "replication").want(exitError, "replication:")
	relay := d.relay(d.replicated(), "--name", "relay-1")
	d.publish("orders", 5)
	until(t, "the first are delivered", func() bool { return d.count() == 50 })
	until(t, "the log is read", func() bool { return d.int("SELECT count(position) FROM outbox.slots") == 1 })
	d.publish("orders", 5)
	d.outbox("handover", "--destination", "file", "--to", "snapshot").want(exitUsage, "--yes")
	d.outbox("handover", "--destination", "file", "--to", "snapshot", "--yes", "--reason", "test").want(exitOK, "file is read by snapshot")
	if n := d.int("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); n != 0 {
		t.Errorf("%d slots are left", n)
	}
	d.publish("orders", 5)
	d.outbox("handover", "--destination", "file", "--to", "replication", "-o", "json").want(exitOK, `"replication"`)
	d.publish("orders", 5)
	until(t, "all are delivered", func() bool { return d.count() >= 200 })
	d.outbox("status").want(exitOK, "the log", "reserved")
	if code := relay.stop(); code != exitOK {
		t.Errorf("the relay ended with %d", code)
	}
	until(t, "the destination can be dropped", func() bool {
		d.outbox("destinations", "drop", "file", "--dry-run").want(exitOK, "file")
		return d.int("SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT active") == 1
	})
	d.outbox("destinations", "drop", "file", "--yes").want(exitOK, "file")
	if n := d.int("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"); n != 0 {
		t.Errorf("%d slots are left after the destination was dropped", n)
	}
	for key, list := range d.delivered() {
		if len(list) != 20 {
			t.Errorf("%s came %d times, want 20", key, len(list))
		}
		for i, payload := range list {
			if payload != fmt.Sprint(i%5) && payload != fmt.Sprintf("%q", fmt.Sprint(i%5)) {
				t.Errorf("%s: %q", key, list)
				break
			}
		}
	}
}

func TestARelayThatDoesNotReadTheLogIsRefusedWhereAnotherDid(t *testing.T) {
	t.Parallel()
	d := setup(t)
	logged := d.relay(d.replicated(), "--name", "relay-1")
	until(t, "the log is read", func() bool { return d.int("SELECT count(position) FROM outbox.slots") == 1 })
	d.outbox("handover", "--destination", "file", "--to", "replication", "--abandon").want(exitUsage, "--to snapshot")
	d.outbox("handover", "--destination", "file", "--to", "snapshot", "--abandon", "--yes").want(exitError, "a relay owns the destination")
	if code := logged.stop(); code != exitOK {
		t.Errorf("the relay ended with %d", code)
	}
	refused := d.relay(d.fileYAML(""), "--name", "relay-2")
	until(t, "a relay without replication says the next command", func() bool {
		return strings.Contains(refused.stderr.String(), "outbox handover --destination file --to snapshot")
	})
	if code := refused.stop(); code != exitOK {
		t.Errorf("a relay without replication: ended with %d", code)
	}
	d.publish("orders", 5)
	until(t, "the log is abandoned", func() bool {
		return d.outbox("handover", "--destination", "file", "--to", "snapshot", "--abandon", "--yes").code == exitOK
	})
	d.relay(d.fileYAML(""), "--name", "relay-2")
	until(t, "all are delivered", func() bool { return d.count() >= 50 })
}
