package main

import (
	"strings"
	"testing"
)

func TestAJobIsListedStartedUndoneAndRestored(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.letters()
	d.outbox("jobs", "ls").want(exitOK, "none")
	d.outbox("dead", "discard", "--destination", "kafka", "--dry-run").want(exitOK, "MESSAGES", "listed as job 1")
	d.outbox("jobs", "ls").want(exitOK, "planned", "discard")
	d.outbox("dead", "discard", "--job", "1", "--topic", "x", "--yes").want(exitUsage, "leave the selection out")
	d.outbox("dead", "discard", "--job", "1", "--now", "--yes", "--reason", "theirs").want(exitOK, "discarded 3 messages")
	d.outbox("dead", "ls").want(exitOK, "none")
	d.outbox("dead", "ls", "--discarded").want(exitOK, "no 1", "no 2")
	d.outbox("dead", "group", "--discarded").want(exitUsage, "dead ls")
	d.outbox("jobs", "show", "1").want(exitOK, "done", "3 of 3", "theirs", "such as")
	d.outbox("jobs", "show", "9").want(exitNotFound, "outbox jobs ls")
	d.outbox("dead", "restore", "1", "--now", "--yes").want(exitOK, "restored 1 message")
	d.outbox("jobs", "undo", "1").want(exitOK, "undone")
	d.outbox("dead", "ls", "--discarded").want(exitOK, "none")
	if n := d.int(`SELECT count(*) FROM outbox.dead_letters`); n != 3 {
		t.Errorf("%d of 3 are back", n)
	}
	d.outbox("jobs", "stop", "1").want(exitError, "has ended")
}

func TestAJobThatWasLeftAloneIsCarriedOutByARelay(t *testing.T) {
	t.Parallel()
	s := serve(t, users)
	s.letters()
	r := s.post("/api/v1/dead/ack", `{"destination":"kafka"}`)
	if !strings.Contains(r, `"state":"waiting"`) {
		t.Error(r)
	}
	s.exec(`UPDATE outbox.jobs SET next_at = clock_timestamp()`) // the ten seconds are over
	until(t, "the relay has carried it out", func() bool {
		return s.int(`SELECT count(*) FROM outbox.jobs WHERE state = 'done' AND done = 3`) == 1
	})
	if n := s.int(`SELECT count(*) FROM outbox.dead_letters WHERE acknowledged_by = 'oscar'`); n != 3 {
		t.Errorf("%d are acknowledged", n)
	}
}
