"""The dashboard: web pages over states, queues and intake queues, for one process of an operator's.

It asks the questions that ``status``, ``deliveries`` and ``history`` ask, and gives the commands that ``retry`` and
``resolve`` give. Only ``ferryman dashboard`` loads it; its packages come with the extra ``[dashboard]``.

    places    what the folders hold: states, queues, intake queues
    recorded  a plan as its state has recorded it, for questions without the plan file
    answers   keeps answers as long as the state has not changed, and asks again in the background
    cells     text of strangers, made safe and short for a page
    guard     who may see a page, and who may act
    web       requests, forms, templates
    plans     pages of one plan and of all
    queues    pages of queues, flows and intake queues
    actions   what an operator has done from a page
    app       puts it together and serves it
"""
