package admin

import "testing"

func TestTheAuditIsReadNewestFirst(t *testing.T) {
	t.Parallel()
	d := setup(t)
	d.Cursor("kafka", "1 minute")
	target := Target{Destination: "kafka", Key: "a"}
	if _, err := Pause(t.Context(), d.Conn, target, ControlOptions{}, Action{Actor: "anna", Reason: "their migration"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Resume(t.Context(), d.Conn, target, false, Action{Actor: "ben"}); err != nil {
		t.Fatal(err)
	}
	list, err := Audit(t.Context(), d.Conn, AuditFilter{})
	if err != nil || len(list) != 2 || list[0].Verb != "resume" || list[1].Reason != "their migration" ||
		list[1].Destination != "kafka" || len(list[1].Detail) < 3 {
		t.Fatalf("%+v, %v", list, err)
	}
	if list, err := Audit(t.Context(), d.Conn, AuditFilter{Before: list[0].ID}); err != nil || len(list) != 1 || list[0].Actor != "anna" {
		t.Errorf("%+v, %v", list, err)
	}
	if list, err := Audit(t.Context(), d.Conn, AuditFilter{Actor: "ben", Verb: "resume", Since: list[0].At}); err != nil || len(list) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}
