------------------------------- MODULE Claims -------------------------------
(* Programs take the events of a consumer by claims, each for a time: the   *)
(* model of Claims in pools.rs once more. A program may be killed, and may  *)
(* take longer than its claim lasts. Waits are over at once.                *)
EXTENDS Naturals, FiniteSets

CONSTANTS Events,       \* 1..N
          Programs,
          Places,       \* how many events may be claimed at once
          Attempts,     \* after so many failures an event is a dead letter
          Disturbances, \* so many kills, and claims that end too early
          Failures      \* so many failures that programs report

Key(e) == e % 2
Nobody == 0
Nothing == <<0, 0>>

VARIABLES done,      \* the finished events, dead letters included
          dead,      \* the dead letters
          claim,     \* of each event, the token of who has it
          over,      \* the tokens whose time is over
          failed,    \* of each event, how often it has failed
          has,       \* of each program, its event and its token
          tokens,    \* how many there were
          handled,   \* what programs have handled
          disturbed, reported

vars == <<done, dead, claim, over, failed, has, tokens, handled, disturbed, reported>>

Init == /\ done = {} /\ dead = {} /\ over = {} /\ handled = {}
        /\ claim = [e \in Events |-> Nobody]
        /\ failed = [e \in Events |-> 0]
        /\ has = [p \in Programs |-> Nothing]
        /\ tokens = 0 /\ disturbed = 0 /\ reported = 0

Claimed == {e \in Events : claim[e] # Nobody}
IsHeld(t) == \E p \in Programs : has[p] # Nothing /\ has[p][2] = t
IsValid(e, t) == claim[e] = t /\ t \notin over

(* An attempt at an event is over. *)
Fail(e) == /\ failed' = [failed EXCEPT ![e] = @ + 1]
           /\ claim' = [claim EXCEPT ![e] = Nobody]
           /\ IF failed[e] + 1 >= Attempts
              THEN done' = done \cup {e} /\ dead' = dead \cup {e}
              ELSE UNCHANGED <<done, dead>>

Take(p, e) == /\ has[p] = Nothing
              /\ e \notin done /\ claim[e] = Nobody
              /\ \A f \in Events : f < e /\ Key(f) = Key(e) => f \in done
              /\ Cardinality(Claimed) < Places
              /\ tokens' = tokens + 1
              /\ claim' = [claim EXCEPT ![e] = tokens + 1]
              /\ has' = [has EXCEPT ![p] = <<e, tokens + 1>>]
              /\ UNCHANGED <<done, dead, over, failed, handled, disturbed, reported>>

(* The program has handled it. It is finished only if the claim is not over. *)
Acknowledge(p) == /\ has[p] # Nothing
                  /\ LET e == has[p][1]  t == has[p][2] IN
                     /\ handled' = handled \cup {e}
                     /\ IF IsValid(e, t)
                        THEN done' = done \cup {e} /\ claim' = [claim EXCEPT ![e] = Nobody]
                        ELSE UNCHANGED <<done, claim>>
                  /\ has' = [has EXCEPT ![p] = Nothing]
                  /\ UNCHANGED <<dead, over, failed, tokens, disturbed, reported>>

Report(p) == /\ has[p] # Nothing /\ reported < Failures
             /\ IsValid(has[p][1], has[p][2])
             /\ Fail(has[p][1])
             /\ has' = [has EXCEPT ![p] = Nothing]
             /\ reported' = reported + 1
             /\ UNCHANGED <<over, tokens, handled, disturbed>>

Kill(p) == /\ has[p] # Nothing /\ disturbed < Disturbances
           /\ has' = [has EXCEPT ![p] = Nothing]
           /\ disturbed' = disturbed + 1
           /\ UNCHANGED <<done, dead, claim, over, failed, tokens, handled, reported>>

(* The time of a claim is over: of a program that is gone, or that takes too long. *)
RunsOut(e) == /\ claim[e] # Nobody /\ claim[e] \notin over
              /\ \/ ~IsHeld(claim[e]) /\ UNCHANGED disturbed
                 \/ IsHeld(claim[e]) /\ disturbed < Disturbances /\ disturbed' = disturbed + 1
              /\ over' = over \cup {claim[e]}
              /\ UNCHANGED <<done, dead, claim, failed, has, tokens, handled, reported>>

(* Whoever takes events next notes that. *)
Note(e) == /\ claim[e] # Nobody /\ claim[e] \in over
           /\ Fail(e)
           /\ UNCHANGED <<over, has, tokens, handled, disturbed, reported>>

Next == \/ \E p \in Programs : \/ \E e \in Events : Take(p, e)
                               \/ Acknowledge(p) \/ Report(p) \/ Kill(p)
        \/ \E e \in Events : RunsOut(e) \/ Note(e)

Fairness == /\ \A p \in Programs : WF_vars(Acknowledge(p)) /\ WF_vars(\E e \in Events : Take(p, e))
            /\ \A e \in Events : WF_vars(RunsOut(e)) /\ WF_vars(Note(e))

Spec == Init /\ [][Next]_vars /\ Fairness

(* Never two of an event or of a key at programs whose claims are not over. *)
Apart == \A p, q \in Programs :
           p # q /\ has[p] # Nothing /\ has[q] # Nothing
           /\ IsValid(has[p][1], has[p][2]) /\ IsValid(has[q][1], has[q][2])
           => Key(has[p][1]) # Key(has[q][1])

Honest == done \subseteq handled \cup dead

Sound == Claimed \cap done = {} /\ Cardinality(Claimed) <= Places

AllIsDone == <>(done = Events)
=============================================================================
