package draw

import "github.com/pgoutbox/outbox/admin/verbs"

// Views are the views by the names of verbs.
func Views() map[string]View {
	return map[string]View{
		"canary":            canary(),
		"dead ls":           shows(listLetters),
		"dead show":         shows(showLetters),
		"dead edit":         editLetter(),
		"dead group":        shows(listGroups),
		"dead requeue":      actOnDead("requeue"),
		"dead ack":          actOnDead("acknowledge"),
		"dead discard":      actOnDead("discard"),
		"dead restore":      actOnDead("restore"),
		"tables dead":       shows(listDeadRows),
		"tables requeue":    actOnRows[verbs.TablesRequeue]("Have %s delivered once more?", "%s to be delivered once more"),
		"tables ack":        actOnRows[verbs.TablesAck]("Acknowledge %s?", "%s acknowledged"),
		"jobs ls":           shows(listJobs),
		"jobs show":         shows(showJob),
		"jobs run":          actOnJob[verbs.JobRun](),
		"jobs stop":         actOnJob[verbs.JobAct](),
		"jobs undo":         actOnJob[verbs.JobAct](),
		"replay":            bulk[verbs.Replay]("Send %s once more?"),
		"messages find":     shows(listMessages),
		"messages show":     shows(showMessages),
		"destinations ls":   shows(listDestinations),
		"destinations move": moveDestination(),
		"destinations drop": dropDestination(),
		"inbox status":      shows(showInbox),
		"inbox window":      inboxWindow(),
		"holds":             shows(listHolds),
		"relays":            shows(listRelays),
		"retention":         shows(listRetention),
		"audit":             shows(listAudit),
		"pause":             pause(),
		"resume":            resume(),
		"throttle":          throttle(),
		"controls":          shows(listControls),
		"retry":             retry(),
		"rebase":            rebase(),
		"handover":          handover(),
	}
}
